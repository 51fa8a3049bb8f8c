"""What a round needs done by models: the interface between deciding what to draft and drafting it.

`ModelExecutor` runs models in this process; the simulator's replays a tape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.decision import Decision
from adaptspec.drafting.drafter import Draft
from adaptspec.engine.scheduler import Batch, Caches
from adaptspec.engine.sequence import Sequence as Seq
from adaptspec.verification.method import VerifyResult


class CommittedTokens(NamedTuple):
    """What stays of a row's round: the drafted `nodes` after the first `length` tokens of its text.

    The token after them is in no cache yet. `drafter` was asked to draft for the row (-1: none).
    """

    sequence: Seq
    length: int
    nodes: list[int]
    drafter: int


class Lookups(NamedTuple):
    """What model-free drafters have found for B rows before the round, and their confidence in each token.

    `num_found` [drafters, B] counts tokens; `confidence` [drafters, B, depth], None: no drafter states one.
    """

    num_found: Sequence[Sequence[int]]
    confidence: FloatArray | None


@dataclass(frozen=True)
class LaunchedRound:
    """A round that was launched: its drafts, as far as they are known yet."""

    batch: Batch
    draft: Draft


class VerifiedRound(NamedTuple):
    """The drafts of a round's E rows and how they were judged.

    `seconds` of drafting and verifying; None: what `launch` and `finish` took. `verify_tokens`: nodes that the target
    computed, where the pass was laid out before drafting had stopped; None: those that were drafted.
    """

    draft: Draft
    result: VerifyResult
    seconds: tuple[float, float] | None = None
    verify_tokens: int | None = None


class Executor(Protocol):
    """Drafts and verifies for batches: B decoding rows first, then those whose prompt ends in this round, E in all.

    All calls come from one thread, in the order of a round; `launch` of the next may come right after `commit`.
    """

    overlaps: bool  # whether a launched round runs by itself: the host has time for other work before `finish`

    @property
    def drafters(self) -> tuple[str, ...]:
        """Their names; `Decision.drafter` is an index into them."""

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

    def look_up(self, batch: Batch, max_depth: int, drafters: Collection[int]) -> Lookups:
        """What these model-free drafters would draft now, up to `max_depth` tokens within the limits.

        A head that is not among `drafters` gets no hidden states of the target until it is.
        """

    def launch(self, batch: Batch, decision: Decision) -> LaunchedRound:
        """Begin a round: draft for the decoding rows, or start to where rounds overlap."""

    def finish(self, launched: LaunchedRound) -> VerifiedRound:
        """End it: run the target over drafts and prompt chunks and judge the drafts.

        A sequence for which nothing can be drawn is failed; logprobs that it asked for are in `Seq.scored`.
        """

    def commit(self, committed: Sequence[CommittedTokens]) -> None:
        """Drop what is cached of these rows beyond the committed tokens."""

    def score_lookups(self, batch: Batch, decision: Decision, context: IntArray) -> tuple[IntArray, IntArray] | None:
        """After `commit`: what drafters that did not run would have drafted, and how much of it was right.

        [drafters, B] each (`RoundRecord.shadow_drafted` and `shadow`), -1 where unknown; `context` [B]: tokens before
        the round. None where the decision watches no drafter.
        """


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
