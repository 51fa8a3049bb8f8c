"""What happened in one round, as plain data without torch.

A round is one draft, one verification and one commit of the running batch. Policies and sinks learn from its
`RoundRecord` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isnan, nan
from typing import Any, NamedTuple, Protocol

import numpy as np

from adaptspec.arrays import EMPTY_INT, BoolArray, FloatArray, IntArray
from adaptspec.decision import Decision, Expected
from adaptspec.draft_tree import DraftTree
from adaptspec.request import Request
from adaptspec.results import Completion


class DraftWork(NamedTuple):
    """The passes that one drafter ran in a round.

    `rows` were asked to draft. `passes` are the rows (or nodes of trees) of each pass that ran, padding included; the
    first one also covers rows that only caught up. A model-free drafter runs none. `catch_up_tokens` were read beyond
    the one or two per row that every round brings.
    """

    drafter: str
    rows: int
    passes: tuple[int, ...] = ()
    catch_up_tokens: float = 0.0


class RoundWork(NamedTuple):
    """The passes that a round ran: the input of the cost model.

    `verify_tokens` are packed tokens of the target's pass, padding included and prompts excluded. `context_tokens`:
    cached tokens of all rows together. `ragged`: passes take longer if rows verify different numbers of tokens.
    """

    rows: int
    verify_tokens: int
    context_tokens: float = 0.0
    drafts: tuple[DraftWork, ...] = ()
    prefill_tokens: int = 0
    ragged: bool = False


class Timing(NamedTuple):
    """Seconds of a round; `draft` and `verify` are NaN where only the whole round was timed."""

    draft: float
    verify: float
    total: float

    @property
    def has_parts(self) -> bool:
        """Whether drafting and verification were timed apart."""
        return not (isnan(self.draft) or isnan(self.verify))


# Fields of `RoundRecord` by their shape: [B] and [drafters, B, ...].
PER_ROW = ("rows", "depths", "reasons", "drafter", "drafted", "accepted", "emitted", "context")
PER_DRAFTER = ("shadow", "shadow_drafted", "stated")


class ChainOutcome(NamedTuple):
    """Main chains of one drafter in a round, all [B], whether it ran or was only scored.

    `ran`: it drafted for the row. `known`: it ran or was scored; where not, `drafted` and `accepted` are 0.
    """

    ran: BoolArray
    known: BoolArray
    drafted: IntArray
    accepted: IntArray


@dataclass(frozen=True)
class Branches:
    """Drafts and accepted paths of a round in which a draft branches or has nodes of several drafters.

    `path` [B, D] has the index of the accepted node at each depth, -1 beyond them.
    """

    tree: DraftTree
    path: IntArray

    @property
    def on_chain(self) -> IntArray:
        """[B] accepted nodes on the main chain: what the chain alone would have had accepted."""
        run = np.logical_and.accumulate(self.path == np.arange(self.path.shape[1]), axis=1).sum(axis=1)
        # A node after the chain's last one may have the next index.
        return np.asarray(np.minimum(run, self.tree.chain))

    def ranks(self, row: int, count: int) -> list[int]:
        """The ranks of a row's first `count` accepted nodes."""
        ranks: list[int] = self.tree.rank[self.tree.row_nodes(row)][self.path[row, :count]].tolist()
        return ranks

    def take(self, index: IntArray) -> Branches:
        return Branches(self.tree.take(index), self.path[index])


def has_branches(tree: DraftTree, drafter: IntArray) -> bool:
    """Whether a row branches, or has nodes of other drafters than its own, `drafter` [B]."""
    return tree.branched or bool((tree.drafter != drafter[tree.row]).any())


@dataclass(frozen=True)
class RoundRecord:
    """What one round decided, did and cost. Row-wise arrays have the batch's order; B rows, D = deepest draft.

    Where drafts branch, `drafted` and `accepted` are tokens along a path, the longest and the accepted one, never
    nodes; `confidence` and `entropy` are those of the main chain, and `branches` has the rest.

    Only decoding rows are listed: rows still reading their prompt are summed in `work.prefill_tokens`. `work` and
    `timing` are those of the whole round, also where `take` leaves rows out.
    `confidence` (the draft's probability of its token) and `entropy` (nats, of the draft distribution) are [B, D], NaN
    where nothing was drafted. `accepted` counts what verification kept, `emitted` what the client gets (cut at EOS,
    stop, max_tokens). A token that was drafted but dropped by the stop rule counts in neither `drafted` nor `accepted`,
    only in `timing.draft`. `ended` is on the monotonic clock, as `Timings` are; NaN where no clock ran (a simulation).
    """

    number: int
    request_ids: tuple[str, ...]
    rows: IntArray  # [B] the engine's row of each request, stable while it runs
    depths: IntArray  # [B] decided
    reasons: IntArray  # [B] Reason codes
    drafter: IntArray  # [B] index into the engine's drafters
    drafted: IntArray  # [B] submitted for verification, along the longest path
    accepted: IntArray  # [B]
    emitted: IntArray  # [B]
    context: IntArray  # [B] tokens before this round
    confidence: FloatArray  # [B, D]
    entropy: FloatArray  # [B, D]
    work: RoundWork
    timing: Timing
    # [drafters, B], indexed as `drafter` is: of a drafter that did not run, how many tokens of a draft of `emitted`
    # tokens would have been accepted, and how many it would have drafted; -1 where unknown. Deeper drafts stay unknown,
    # as the text beyond the emitted tokens is.
    shadow: IntArray | None = None
    shadow_drafted: IntArray | None = None
    # [drafters, B, depth]: confidence of each drafter in what it had found before the round (`BatchSignals.stated`).
    stated: FloatArray | None = None
    expected: Expected | None = None  # None where the policy estimates nothing
    ended: float = nan
    branches: Branches | None = None  # None in rounds whose drafts are chains
    # The decision that the round ran by, which may have served several rounds, and the position of each row [B] in it
    # (None: its rows are those of the decision). Not in journals.
    decision: Decision | None = None
    index: IntArray | None = None
    tasks: IntArray = field(default_factory=lambda: EMPTY_INT)  # [B] the controller's numbers; empty in journals
    # [B] whether the request of the round still has the row; set by the controller. None: all have.
    running: BoolArray | None = None

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that the target read."""
        return self.work.prefill_tokens

    @property
    def target_tokens(self) -> int:
        """Packed tokens of the target's pass, prompts included."""
        return self.work.verify_tokens + self.work.prefill_tokens

    @property
    def draft_steps(self) -> int:
        """Passes of draft models."""
        return sum(len(draft.passes) for draft in self.work.drafts)

    @property
    def caught_up(self) -> int:
        """Tokens that draft models read beyond the usual one or two per row."""
        return round(sum(draft.catch_up_tokens for draft in self.work.drafts))

    @property
    def current_rows(self) -> IntArray:
        """`rows` with -1 where the request of the round does not have the row any more [B]."""
        return self.rows if self.running is None else np.where(self.running, self.rows, -1)

    @property
    def drafting(self) -> bool:
        if len(self.drafted) == 1:
            return self.drafted.item() > 0
        # `functools.cached_property` takes a lock, which is longer than looking at one row.
        known: bool | None = self.__dict__.get("_drafting")
        if known is None:
            known = self.__dict__["_drafting"] = bool(np.count_nonzero(self.drafted))
        return known

    @property
    def kept(self) -> IntArray:
        """Accepted tokens that the client received [B], without the target's own token of each pass."""
        return np.minimum(self.accepted, np.maximum(self.emitted - 1, 0))

    @property
    def nodes(self) -> IntArray:
        """All tokens of each row that were submitted for verification [B]."""
        return self.drafted if self.branches is None else self.branches.tree.counts

    @property
    def chain(self) -> IntArray:
        """Tokens of each row's main chain [B]."""
        return self.drafted if self.branches is None else self.branches.tree.chain

    @property
    def kept_on_chain(self) -> IntArray:
        """Accepted tokens of each row's main chain that the client received [B]."""
        return self.kept if self.branches is None else np.minimum(self.kept, self.branches.on_chain)

    def main_chains(self) -> RoundRecord:
        """The round reduced to its main chains: what chains without side nodes would have had accepted.

        `emitted` stays, and may be more than the chains account for. `drafter` is that of the chain, which may be the
        second one where two drafters added nodes to a row.
        """
        if self.branches is None:
            return self
        tree, accepted = self.branches.tree, np.minimum(self.accepted, self.branches.on_chain)
        drafting = tree.chain > 0
        drafter = self.drafter.copy()
        drafter[drafting] = tree.drafter[tree.offsets[:-1][drafting]]
        return replace(self, drafter=drafter, drafted=tree.chain, accepted=accepted, branches=None)

    def chains(self, drafter: int) -> ChainOutcome:
        """Outcomes of the main chains of a drafter: those that ran, else those that were scored."""
        main = self.main_chains()
        ran = (main.drafter == drafter) & (main.depths > 0)
        known, drafted, accepted = ran, np.where(ran, main.drafted, 0), np.where(ran, main.accepted, 0)
        if self.shadow is not None and self.shadow_drafted is not None:
            agreed = self.shadow[drafter]
            known = ran | (agreed >= 0)
            drafted = np.where(known > ran, self.shadow_drafted[drafter], drafted)
            accepted = np.where(known > ran, agreed, accepted)
        return ChainOutcome(ran, known, drafted, accepted)

    def without_decision(self) -> RoundRecord:
        """The same round for sinks: its decision refers to policies, which would live as long as the record."""
        values: dict[str, Any] = vars(self) | {"decision": None, "index": None}
        values.pop("_drafting", None)
        return RoundRecord(**values)

    def take(self, index: IntArray) -> RoundRecord:
        """The same round for some of its rows, by position in the batch."""
        deepest = int(self.chain[index].max(initial=0))  # rows of other policies may have drafted deeper
        taken: dict[str, Any] = vars(self) | {name: getattr(self, name)[index] for name in PER_ROW}
        taken.pop("_drafting", None)
        taken["request_ids"] = tuple(self.request_ids[i] for i in index.tolist())
        for name in ("confidence", "entropy"):
            taken[name] = getattr(self, name)[index, :deepest]
        for name in PER_DRAFTER:
            if (value := getattr(self, name)) is not None:
                taken[name] = value[:, index]
        if len(self.tasks):
            taken["tasks"] = self.tasks[index]
        if self.running is not None:
            taken["running"] = self.running[index]
        if self.decision is not None:
            taken["index"] = index if self.index is None else self.index[index]
        for name in ("expected", "branches"):
            if (value := getattr(self, name)) is not None:
                taken[name] = value.take(index)
        return RoundRecord(**taken)  # `replace` takes half as long again


class Sink(Protocol):
    """Receives what happened; called on the engine thread, so it must be quick and must not raise."""

    def started(self, request: Request) -> None:
        """One request has been admitted; its policy is decided and named."""

    def emit(self, record: RoundRecord) -> None:
        """One round has ended. `record` has no decision: what a sink keeps must not keep policies alive."""

    def finished(self, request: Request, completion: Completion) -> None:
        """One request has ended, however it ended."""
