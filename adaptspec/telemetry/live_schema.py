"""Requests as a watcher sees them: those that run, and those that ended lately. Never their text, nor token ids.

Knows the shape they have on the wire; it does not know who watches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaptspec.types import Completion, Request, RoundRecord

# One round of one request on the wire; `entropy` is the mean over what was drafted, in nats, null where unknown.
BAR_COLUMNS = ("depth", "drafted", "accepted", "emitted", "drafter", "reason", "entropy")
Bar = tuple[int, int, int, int, int, int, float | None]


@dataclass
class Running:
    """A request that was admitted, `admitted` seconds since 1970, and the output tokens it has so far."""

    request: Request
    admitted: float
    tokens: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain data. `tokens` counts those of rounds: the first one comes with the prompt."""
        return card(self.request) | {"admitted": round(self.admitted, 4), "tokens": self.tokens}


def card(request: Request) -> dict[str, Any]:
    """What is said of a request, whatever became of it."""
    wishes = request.speculation
    return {
        "id": request.id,
        "task": wishes.task,
        "task_detected": wishes.task_detected,
        "policy": wishes.policy,
        "prompt_tokens": len(request.prompt),
        "max_tokens": request.sampling.max_tokens,
    }


def ended(request: Request, completion: Completion, clock: float) -> dict[str, Any]:
    """A request that has ended, as plain data; `clock` is what turns monotonic seconds into seconds since 1970."""
    stats, timings = completion.stats, completion.timings

    def since_1970(at: float | None) -> float | None:
        return None if at is None else round(at + clock, 4)

    return card(request) | {
        "policy": stats.policy,
        "finish": completion.finish.value,
        "tokens": len(completion.tokens),
        "rounds": stats.rounds,
        "draft_rounds": stats.draft_rounds,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "arrived": since_1970(timings.arrived),
        "admitted": since_1970(timings.admitted),
        "first_token": since_1970(timings.first_token),
        "finished": since_1970(timings.finished),
    }


def bars_of(records: Sequence[RoundRecord]) -> dict[str, list[Bar]]:
    """The rounds of each request, oldest first."""
    bars: dict[str, list[Bar]] = {}
    for record in records:
        for name, bar in zip(record.request_ids, _bars(record), strict=True):
            bars.setdefault(name, []).append(bar)
    return bars


def last_bars(records: deque[RoundRecord], wanted: set[str], most: int) -> dict[str, list[Bar]]:
    """The last `most` rounds of each wanted request."""
    bars = bars_of(records)
    return {name: bars[name][-most:] for name in wanted if name in bars}


def _bars(record: RoundRecord) -> list[Bar]:
    accepted = np.minimum(record.accepted, record.emitted).tolist()
    columns = zip(
        record.depths.tolist(),
        record.drafted.tolist(),
        accepted,
        record.emitted.tolist(),
        record.drafter.tolist(),
        record.reasons.tolist(),
        record.entropy.tolist(),
        strict=True,
    )
    return [
        (depth, drafted, kept, emitted, drafter, reason, _mean(entropy))
        for depth, drafted, kept, emitted, drafter, reason, entropy in columns
    ]


def _mean(entropy: list[float]) -> float | None:
    known = [value for value in entropy if value == value]  # noqa: PLR0124 - NaN, where nothing was drafted, is not itself
    return round(sum(known) / len(known), 3) if known else None
