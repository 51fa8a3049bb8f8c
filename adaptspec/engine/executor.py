"""What a round needs done by models: the seam between deciding what to draft and drafting it.

`ModelExecutor` runs models in this process; the simulator's stands on a tape. And a round on its way: what it was
launched with, what it has come to, and how long its parts took.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.control.policy import BatchSignals
from adaptspec.decision import Decision
from adaptspec.engine.scheduler import Batch, Caches
from adaptspec.engine.sequence import Sequence as Seq
from adaptspec.models.draft import Draft
from adaptspec.verification.method import VerifyResult


class Kept(NamedTuple):
    """What stays of a row's round: its text was `length` tokens before it, and drafted tokens of these `places` follow.

    The token after them is in no cache yet. `drafter` was asked to draft for it (-1: none).
    """

    sequence: Seq
    length: int
    places: list[int]
    drafter: int


class Offers(NamedTuple):
    """Tokens that each drafter would draft for each of B rows, and how sure it is of each; None: nobody says."""

    found: Sequence[Sequence[int]]  # [drafters, B]
    stated: FloatArray | None  # [drafters, B, depth]


@dataclass(frozen=True)
class Pending:
    """A round that was launched: its drafts, as far as they are known yet."""

    batch: Batch
    draft: Draft


class Outcome(NamedTuple):
    """What a round has come to: the drafts of its E rows, how they were judged, and the seconds of both.

    Without `seconds` they are what `launch` and `finish` took. `verified`: tokens that the target computed for drafts,
    where the pass was laid out before drafting had stopped; None: those that were drafted.
    """

    draft: Draft
    verdict: VerifyResult
    seconds: tuple[float, float] | None = None
    verified: int | None = None


class Executor(Protocol):
    """Drafts and verifies for batches: B decoding rows first, then those whose prompt ends in this round, E in all.

    All calls come from one thread, in the order of a round; `launch` of the next may come right after `keep`.
    """

    overlaps: bool  # whether a launched round runs by itself: the host has time for other work before `finish`

    @property
    def drafters(self) -> tuple[str, ...]:
        """Their names; `Decision.drafter` counts them."""

    @property
    def anticipating(self) -> tuple[str, ...]:
        """Those drafters that may drop tokens for what they are (see `Drafter.propose`)."""

    @property
    def caches(self) -> Caches:
        """The caches in which the scheduler reserves room and finds common prefixes."""

    def start(self, sequence: Seq) -> None:
        """A sequence has got its row."""

    def leave(self, row: int) -> None:
        """The row's sequence has ended or was preempted; its cached tokens may be reused."""

    def cache_gaps(self, batch: Batch) -> Sequence[Sequence[int]]:
        """[drafters, B] tokens that each drafter has yet to read (see `BatchSignals.cache_gap`)."""

    def offers(self, batch: Batch, most: int, asked: Collection[int]) -> Offers:
        """What these drafters know they would draft now, asked for `most` within the limits; of others, nothing.

        A head that is not asked is given no states of the target until it is.
        """

    def launch(self, batch: Batch, decision: Decision) -> Pending:
        """Begin a round: draft for the decoding rows, or start to where rounds overlap."""

    def finish(self, pending: Pending) -> Outcome:
        """End it: run the target over drafts and prompt chunks and judge the drafts.

        A sequence for which nothing can be drawn is failed; logprobs that it asked for are in `Seq.scored`.
        """

    def keep(self, kept: Sequence[Kept]) -> None:
        """After commit: forget what is cached of rows beyond what was kept."""

    def shadows(self, batch: Batch, decision: Decision, context: IntArray) -> tuple[IntArray, IntArray] | None:
        """After commit: what drafters that did not run would have drafted and got accepted (`RoundRecord.shadow`).

        [drafters, B] each, -1 where unknown; `context` [B]: tokens before the round. None where nobody is watched.
        """


class Flight(NamedTuple):
    """A round that runs."""

    batch: Batch
    signals: BatchSignals
    decision: Decision
    pending: Pending
    clock: Clock


class Landed(NamedTuple):
    """A round whose tokens are there, but not its text.

    `taken`: those of the emitting whose tokens were appended; `there`: the decoding rows whose request was still there
    at its end (None: all); `shadows`: see `Executor.shadows`; `seconds` of drafting and verifying; `verified`: see
    `Outcome`.
    """

    flight: Flight
    draft: Draft
    verdict: VerifyResult
    taken: list[int]
    there: IntArray | None
    shadows: tuple[IntArray, IntArray] | None
    seconds: tuple[float, float]
    verified: int


class Clock:
    """Splits a round's time into named laps, in seconds."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self._timer = timer
        self._start = self._last = timer()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = self._timer()
        self._laps[name] = now - self._last
        self._last = now

    def seconds(self, name: str) -> float:
        return self._laps[name]

    @property
    def total(self) -> float:
        return self._last - self._start
