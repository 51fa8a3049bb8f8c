"""What was decided for the requests that run now, and why: the last rounds, kept as they are. Never any text.

A sink that costs an append per round; what is asked is worked out by whoever asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from adaptspec.telemetry.live_schema import card
from adaptspec.types import Completion, Reason, Request, RoundRecord

ROUNDS = 256


class Recent:
    """The requests that run, and the last `rounds` rounds. May be read from any thread."""

    def __init__(self, rounds: int = ROUNDS) -> None:
        self._records: deque[RoundRecord] = deque(maxlen=rounds)
        self._running: dict[str, Request] = {}

    def started(self, request: Request) -> None:
        """See `Sink.started`."""
        self._running[request.id] = request

    def emit(self, record: RoundRecord) -> None:
        """See `Sink.emit`."""
        self._records.append(record)

    def finished(self, request: Request, completion: Completion) -> None:  # noqa: ARG002 (the Sink protocol)
        """See `Sink.finished`."""
        self._running.pop(request.id, None)

    def requests(self, drafters: Sequence[str]) -> list[dict[str, Any]]:
        """The requests that run, each with its decisions, oldest first. `drafters` are the engine's, by index."""
        rounds: dict[str, list[dict[str, Any]]] = {}
        for record in list(self._records):
            for i, name in enumerate(record.request_ids):
                rounds.setdefault(name, []).append(_decision(record, i, drafters))
        return [card(request) | {"rounds": rounds.get(request.id, [])} for request in list(self._running.values())]


def _decision(record: RoundRecord, i: int, drafters: Sequence[str]) -> dict[str, Any]:
    depth = int(record.depths[i])
    return {
        "round": record.number,
        "depth": depth,
        "reason": Reason(int(record.reasons[i])).name.lower(),
        "drafter": drafters[int(record.drafter[i])] if depth else None,
        "drafted": int(record.drafted[i]),
        "accepted": int(record.accepted[i]),
        "emitted": int(record.emitted[i]),
    }
