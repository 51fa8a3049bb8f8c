"""Running totals over rounds, cheap enough to be fed on the engine thread.

Records are only noted when they arrive; every `FOLD` of them (and before each reading) are added up with a
few vectorised passes, about a microsecond a round. Knows arrays, not metric names or formats.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from adaptspec.types import IntArray, Reason, RoundRecord

FOLD = 64  # rounds noted before they are added up: spreads the cost of a numpy call over many rounds
DEPTH_LABELS = 64  # more depths than any sensible policy has; keeps label values bounded


def _empty() -> IntArray:
    return np.zeros(1, dtype=np.int64)


@dataclass(frozen=True)
class Totals:
    """Sums over all rounds so far. The three tallies are indexed by number of tokens, and count row-rounds.

    As in `SpeculationStats`, `accepted` counts only tokens that were emitted: what lies behind an end of
    sequence, a stop string or max_tokens was kept by verification but earned nothing.
    """

    rounds: int = 0
    emitted: int = 0
    prefill_tokens: int = 0
    verify_tokens: int = 0
    draft_steps: int = 0
    caught_up: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    total_seconds: float = 0.0
    depths: IntArray = field(default_factory=_empty)  # by decided depth
    drafted: IntArray = field(default_factory=_empty)  # by number of tokens submitted for verification
    accepted: IntArray = field(default_factory=_empty)  # by number of tokens accepted
    reasons: IntArray = field(default_factory=lambda: np.zeros(1 + max(Reason), dtype=np.int64))

    @property
    def drafts(self) -> int:
        """Row-rounds in which something was drafted."""
        return int(self.drafted[1:].sum())

    @property
    def drafted_tokens(self) -> int:
        """Tokens submitted for verification."""
        return _weighted(self.drafted)

    @property
    def accepted_tokens(self) -> int:
        """Drafted tokens that were emitted."""
        return _weighted(self.accepted)

    @property
    def accepted_per_position(self) -> IntArray:
        """[deepest draft] row-rounds whose draft was accepted at position j (0-based)."""
        reached = np.zeros(max(len(self.drafted), len(self.accepted)) - 1, dtype=np.int64)
        beyond = self.accepted[::-1].cumsum()[::-1][1:]
        reached[: len(beyond)] = beyond
        return reached

    @property
    def labelled_depths(self) -> list[tuple[str, int]]:
        """Row-rounds by decided depth, under labels of which there are few."""
        pairs = [(str(depth), int(count)) for depth, count in enumerate(self.depths[:DEPTH_LABELS])]
        if len(self.depths) > DEPTH_LABELS:
            pairs.append((f"{DEPTH_LABELS}+", int(self.depths[DEPTH_LABELS:].sum())))
        return pairs

    def plus(self, records: Sequence[RoundRecord]) -> Totals:
        """These totals with some more rounds added."""

        def gather(pick: Callable[[RoundRecord], IntArray]) -> IntArray:
            return np.concatenate([pick(record) for record in records])

        emitted = gather(lambda record: record.emitted)
        accepted = np.minimum(gather(lambda record: record.accepted), emitted)
        return replace(
            self,
            rounds=self.rounds + len(records),
            emitted=self.emitted + int(emitted.sum()),
            prefill_tokens=self.prefill_tokens + sum(record.prefill_tokens for record in records),
            verify_tokens=self.verify_tokens + sum(record.verify_tokens for record in records),
            draft_steps=self.draft_steps + sum(record.draft_steps for record in records),
            caught_up=self.caught_up + sum(record.caught_up for record in records),
            draft_seconds=self.draft_seconds + sum(record.draft_seconds for record in records),
            verify_seconds=self.verify_seconds + sum(record.verify_seconds for record in records),
            total_seconds=self.total_seconds + sum(record.total_seconds for record in records),
            depths=_tally(self.depths, gather(lambda record: record.depths)),
            drafted=_tally(self.drafted, gather(lambda record: record.drafted)),
            accepted=_tally(self.accepted, accepted),
            reasons=_tally(self.reasons, gather(lambda record: record.reasons)),
        )


def _tally(before: IntArray, values: IntArray) -> IntArray:
    counts = np.bincount(values, minlength=len(before)).astype(np.int64)
    counts[: len(before)] += before
    return counts


def _weighted(tally: IntArray) -> int:
    return int(tally @ np.arange(len(tally)))


class RoundLedger:
    """Keeps `Totals` up to date. `note` and `read` may be called from different threads.

    Holds on to up to `FOLD` records, so their arrays must not change after they were noted.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._noted: list[RoundRecord] = []
        self._totals = Totals()

    def note(self, record: RoundRecord) -> None:
        """Take a round into account."""
        with self._lock:
            self._noted.append(record)
            if len(self._noted) >= FOLD:
                self._fold()

    def read(self) -> Totals:
        """The totals over every round noted so far."""
        with self._lock:
            if self._noted:
                self._fold()
            return self._totals

    def _fold(self) -> None:
        self._totals = self._totals.plus(self._noted)
        self._noted = []
