"""The interface between decisions and models: drafting, verification and caches of a round.

`ModelExecutor` runs models in this process; the simulator's executor replays a tape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.decision import Decision
from adaptspec.drafting.drafter import Draft
from adaptspec.engine.row_caches import Caches
from adaptspec.engine.scheduler import Batch
from adaptspec.engine.sequence import Sequence as Seq
from adaptspec.verification.method import VerifyResult


class CommittedTokens(NamedTuple):
    """The accepted `nodes` of a row after the first `length` tokens of its text.

    The token after them is in no cache yet. `drafter` has drafted for the row (-1: none).
    """

    sequence: Seq
    length: int
    nodes: list[int]
    drafter: int


class Lookups(NamedTuple):
    """The drafts that model-free drafters have found for B rows before the round.

    `num_found` [drafters, B] is the number of tokens; `confidence` [drafters, B, depth] that of each, None if unknown.
    """

    num_found: Sequence[Sequence[int]]
    confidence: FloatArray | None


@dataclass(frozen=True)
class LaunchedRound:
    """A launched round with its drafts, as far as they are known yet."""

    batch: Batch
    draft: Draft


class VerifiedRound(NamedTuple):
    """The drafts of a round's E rows and the result of their verification.

    `seconds` of drafting and verifying; None: the times of `launch` and `finish`.
    """

    draft: Draft
    result: VerifyResult
    seconds: tuple[float, float] | None = None


class Executor(Protocol):
    """Drafts and verifies for batches: B decoding rows, then rows whose prompt ends in this round, E in total.

    All calls come from one thread, in the order of a round; the next `launch` may follow right after `commit`.
    """

    overlaps: bool  # whether a launched round runs asynchronously, so that the host can do other work before `finish`

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names of the drafters; `Decision.drafter` is an index into them."""

    @property
    def anticipating(self) -> tuple[str, ...]:
        """Names of drafters that may drop sampled tokens because of their value (see `Drafter.propose`)."""

    @property
    def caches(self) -> Caches:
        """The caches in which the scheduler reserves room and finds common prefixes."""

    def start(self, sequence: Seq) -> None:
        """A sequence was assigned its row."""

    def leave(self, row: int) -> None:
        """The row's sequence has ended or was preempted; its cached tokens may be reused."""

    def cache_gaps(self, batch: Batch) -> Sequence[Sequence[int]]:
        """[drafters, B] tokens that each drafter has yet to read (see `BatchSignals.cache_gap`)."""

    def look_up(self, batch: Batch, max_depth: int, drafters: Collection[int]) -> Lookups:
        """The current drafts of the model-free ones of `drafters`, up to `max_depth` tokens within the batch's limits.

        A head that is not in `drafters` gets no hidden states of the target.
        """

    def launch(self, batch: Batch, decision: Decision) -> LaunchedRound:
        """Begin a round: draft for the decoding rows, or start doing so if rounds overlap."""

    def finish(self, launched: LaunchedRound) -> VerifiedRound:
        """Finish a round: run the target over drafts and prompt chunks and verify the drafts.

        Sequences with non-finite scores are failed. Requested log-probabilities are in `Seq.scored`.
        """

    def commit(self, committed: Sequence[CommittedTokens]) -> None:
        """Drop cached tokens of these rows beyond the committed ones."""

    def score_lookups(self, batch: Batch, decision: Decision, context: IntArray) -> tuple[IntArray, IntArray] | None:
        """The tokens that idle drafters would have drafted, and how many were right. Called after `commit`.

        [drafters, B] each (`RoundRecord.shadow_drafted` and `shadow`), -1 where unknown; `context` [B]: tokens before
        the round. None if the decision watches no drafter.
        """


class LapTimer:
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
