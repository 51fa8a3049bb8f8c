"""Drafts that branch, from a tape: trees grow by the engine's own rules, with candidates that were recorded.

Exact is what lies on the text's own path, whichever ranks that takes: which candidate is right, how sure the drafter
was of each, and so every comb, every tree of fixed ranks, every node whose parent is right. Approximate is what a wrong
node goes on with. Drafting on from its first choice, and first choices after that, a drafter is as sure as was recorded
(`AfterMiss`), and the next candidates share what this leaves as those of the true text at this position do. After any
other wrong node it is taken to be as sure as of the true text there. Such nodes cost what real ones would, and none of
them is ever right; that one ends a text is known of first choices only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from adaptspec.decision_tables import StopTable, TreeTable
from adaptspec.drafting.tree_growth import Candidates, Nodes, RowTree, TreeGrowth
from adaptspec.drafting.united_drafts import united
from adaptspec.models.draft import Draft
from adaptspec.simulation.draft_view import DraftView
from adaptspec.types import BoolArray, IntArray

# What stands for drafted tokens: wrong ones, wrong ones that end a text, the text's own, and the one that ends it.
WRONG, ENDED, RIGHT, LAST = 0, 1, 2, 3
_ENDS = frozenset((ENDED, LAST))


@dataclass(frozen=True)
class TapeJob:
    """What to draft in one round. `at` indexes the tape's position after each row's `context` tokens, `end` the last
    position that is emitted of its request, `last` the last one that was recorded.
    """

    rows: IntArray  # [B]
    depths: IntArray  # [B], 0 leaves a row out
    context: IntArray  # [B]
    at: IntArray  # [B]
    end: IntArray  # [B]
    last: IntArray  # [B]
    stop: StopTable | None = None
    tree: TreeTable | None = None


class TapeTrees(TreeGrowth):
    """The trees of one drafter in one round."""

    def __init__(
        self,
        view: DraftView,
        job: TapeJob,
        active: IntArray,
        price: Callable[[int, float], float],
        *,
        beams: bool = True,
    ) -> None:
        """For the active rows [b]. `price(rows, cached)` are the seconds of a step that reads so many nodes, which
        attend to `cached` tokens in all. Nothing is drafted on from off main chains without `beams`.
        """
        assert job.tree is not None
        depths, context = job.depths.tolist(), job.context.tolist()
        trees = [RowTree(job.tree, job.stop, row, depths[row], context[row]) for row in active.tolist()]
        super().__init__(trees, _ENDS, beams=beams)
        self._view, self._job, self._price = view, job, price
        self.read: IntArray = np.zeros_like(job.at)  # [B] drafted tokens that are right and have been read
        self.seconds = 0.0  # of all steps but the first

    def has_room(self, tree: RowTree, more: int) -> bool:  # noqa: ARG002 - there is always room
        """See `TreeGrowth.has_room`."""
        return True

    def candidates(self, front: Nodes, steps: int) -> Sequence[Candidates]:
        """See `TreeGrowth.candidates`."""
        if steps:
            self.seconds += self._price(len(front), float(sum(tree.base + steps for tree, _ in front)))
        found: list[Candidates] = []
        for tree, before in front:
            strayed, straight = _strayed(tree, before)
            self.read[tree.row] += bool(steps) and not strayed
            known = self._true(tree, steps) if not strayed else self._wrong(tree, steps, strayed, straight=straight)
            tokens, sure, spread = known
            found.append((zip(tokens, sure, strict=True), spread))
        return found

    def _true(self, tree: RowTree, steps: int) -> tuple[list[int], list[float], float]:
        """After the true text."""
        view, at = self._view, int(self._job.at[tree.row]) + steps
        if at > self._job.last[tree.row]:
            return self._wrong(tree, steps, 0, straight=False)
        reach, rank, sure = int(view.reach[at]), int(view.rank[at]), self._sure(at, tree.width)
        if not reach:
            return [], [], np.nan
        tokens = [WRONG] * len(sure)
        if rank < len(tokens):
            tokens[rank] = RIGHT if rank == 0 or at < self._job.end[tree.row] else LAST
        if reach == 1:
            tokens[0] = LAST if rank == 0 else ENDED
        return tokens, sure, float(view.entropy[at])

    def _wrong(
        self, tree: RowTree, steps: int, strayed: int, *, straight: bool
    ) -> tuple[list[int], list[float], float]:
        """After so many wrong tokens; `straight`: each of them its drafter's first choice."""
        view, at = self._view, int(self._job.at[tree.row]) + steps
        last = int(self._job.last[tree.row])
        place = min(at, last)
        sure, spread = self._sure(place, tree.width), float(view.entropy[place])
        tokens, miss, after = [WRONG] * len(sure), at - strayed, view.after_miss
        if not straight or miss > last:
            return tokens, sure, spread
        if int(view.reach[miss]) == strayed + 1:
            tokens[0] = ENDED
        if after is not None and strayed <= after.confidence.shape[1]:
            first = float(after.confidence[miss, strayed - 1])
            if not np.isnan(first):
                share = (1.0 - first) / max(1.0 - sure[0], 1e-6)
                sure = [first, *(min(other * share, first) for other in sure[1:])]
                spread = float(after.entropy[miss, strayed - 1])
        return tokens, sure, spread

    def _sure(self, at: int, width: int) -> list[float]:
        """How sure the drafter is of its candidates given the true text, as far as they were recorded."""
        first, top = float(self._view.confidence[at]), self._view.top
        return [first] if top is None else [first, *top[at, 1:width].tolist()]


def _strayed(tree: RowTree, number: int) -> tuple[int, bool]:
    """How many wrong tokens lead to a node, itself one of them, and whether all are their drafter's first choice."""
    count, straight = 0, True
    while number >= 0 and tree.tokens[number] < RIGHT:
        straight &= tree.ranks[number] == 0
        count, number = count + 1, tree.parents[number]
    return count, straight


def chain_tokens(run: IntArray, width: int) -> IntArray:
    """What stands for the tokens of chains [B, width] of which the first `run` [B] are right."""
    return np.where(np.arange(width) < run[:, None], RIGHT, WRONG)


def right_path(draft: Draft) -> tuple[IntArray, IntArray]:
    """How many nodes of each row are right [B], and their places [B, deepest], -1 beyond them; each is after the last.

    Of each depth one node at most is right, as equal tokens after the same one are one node.
    """
    right: BoolArray = (draft.tokens >= RIGHT) & (np.arange(draft.tokens.shape[1]) < draft.counts[:, None])
    accepted = right.sum(axis=1)
    order = np.argsort(~right, axis=1, kind="stable")[:, : int(accepted.max(initial=0))]
    return accepted, np.where(np.arange(order.shape[1]) < accepted[:, None], order, -1)


def united_on_tape(draft: Draft, free: Draft, table: TreeTable, owners: tuple[IntArray, IntArray]) -> Draft:
    """See `united`. Right tokens of both are the same nodes. Wrong ones are taken to differ: no tape knows."""
    known = replace(draft, tokens=np.minimum(draft.tokens, RIGHT))
    return united(known, replace(free, tokens=np.where(free.tokens >= RIGHT, RIGHT, -1)), table, owners)
