"""Drafters over a tape: they read, lag and draft by the rules of the engine's drafters.

Chains are exact: the tape holds which tokens are right, and the drafter's confidence up to its first wrong token and,
as far as it was recorded, after it (`AfterMiss`). Further on a drafter counts as confident as on the true text.

Trees are grown by the engine's own rules. Nodes whose parents are right are exact, at every rank. Nodes after a wrong
one are approximate. After the drafter's first choice, and first choices after that, its confidence
is the recorded one, and the next candidates share the remainder in the proportions of the true text's candidates. After
any other wrong node the drafter counts as confident as on the true text. None of these nodes is ever right; that a node
ends the text is known of first choices only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.decision import StopTable, TreeTable
from adaptspec.draft_tree import DraftTree
from adaptspec.drafting.drafter import Draft
from adaptspec.drafting.tree_builder import ROOT, Candidates, Node, RowNodes, TreeBuilder, TreeGrowth
from adaptspec.rounds import DraftWork
from adaptspec.simulation.machine import Machine
from adaptspec.simulation.tape import DraftView

# Stand-ins for drafted tokens: wrong, wrong and the end of a text, right, right and the end of the text.
WRONG, WRONG_END, RIGHT, RIGHT_END = 0, 1, 2, 3
_ENDS = frozenset((WRONG_END, RIGHT_END))
# Tokens that every round brings to a draft model: after full acceptance it has the last two to read.
_USUAL_TOKENS = 2


@dataclass(frozen=True)
class TapeJob:
    """A round's drafting, for E rows of which the first `decoding` decode.

    `at` is the tape's position after each row's `context` tokens, `end` the last position of its request that is
    emitted, `last` the last one that was recorded.
    """

    rows: IntArray  # [E]
    depths: IntArray  # [E], 0 leaves a row out
    context: IntArray  # [E]
    at: IntArray  # [E]
    end: IntArray  # [E]
    last: IntArray  # [E]
    decoding: int
    stop: StopTable | None = None
    tree: TreeTable | None = None

    def branches(self, active: IntArray) -> bool:
        """Whether one of these rows submits further candidates."""
        return self.tree is not None and bool((self.tree.width[active] > 1).any())

    def planned(self) -> IntArray:
        """Depths of main chains [E]: the ceilings on nodes bound those of trees."""
        return self.depths if self.tree is None else self.tree.within(self.depths)


class TapeModel:
    """A draft model: reads what it missed, at most `catch_up_tokens` a round, then drafts step by step.

    On a machine that drafts together, all planned steps run for all decoding rows, and trees are grown from main chains
    alone.
    """

    def __init__(self, name: str, view: DraftView, machine: Machine, max_rows: int, catch_up_tokens: int) -> None:
        self.view = view
        self._name = name
        self._machine = machine
        self._times = machine.drafters[name]
        self._cached: IntArray = np.zeros(max_rows, dtype=np.int64)
        self._catch_up_tokens = catch_up_tokens

    def cache_gap(self, rows: IntArray, context: IntArray) -> list[int]:
        """Tokens that it has yet to read, beyond those that every round brings, [B]."""
        gap: list[int] = np.maximum(context - self._cached[rows] - _USUAL_TOKENS, 0).tolist()
        return gap

    def propose(self, job: TapeJob) -> tuple[Draft, float]:
        """Drafts for the rows with a depth, and the seconds they take."""
        planned, asked = job.planned(), int(np.count_nonzero(job.depths))
        job = replace(job, depths=self._within_reach(job, planned))
        reading, tokens, active = self._read(job)
        caught_up = int(np.maximum(tokens - _USUAL_TOKENS, 0).sum())
        # Rows that only read on take part in the first pass. It runs for them alone if no row drafts yet.
        first = len(reading), float(job.context[active if len(active) else reading].sum())
        if job.branches(active):
            trees = TapeTrees(self.view, job, beams=not self._times.together)
            tree, further = trees.grow(active), trees.passes
            self._cached[job.rows[active]] = (job.context + trees.read)[active]
        else:
            tree, further = self._chains(job, active)
        passes = [first, *further]
        if self._times.together:
            size, cached = job.decoding, float(job.context[: job.decoding].sum())
            passes = [(size, cached + step * size) for step in range(max(int(planned[active].max(initial=0)), 1))]
        work = DraftWork(self._name, asked, tuple(rows for rows, _ in passes), caught_up)
        seconds = self._times.start + self._times.per_row * len(reading) + self._times.catch_up_per_token * caught_up
        seconds += sum(self._machine.step_seconds(self._name, rows, cached) for rows, cached in passes)
        return Draft(tree, (work,)), seconds

    def keep(self, rows: IntArray, lengths: IntArray) -> None:
        """Forget what it drafted beyond these lengths of the rows' texts."""
        self._cached[rows] = np.minimum(self._cached[rows], lengths)

    def free(self, row: int) -> None:
        """The row's request has ended."""
        self._cached[row] = 0

    def _within_reach(self, job: TapeJob, planned: IntArray) -> IntArray:
        """Depths [E] to which the model drafts without a stop rule; trees end at their own nodes."""
        reach = self.view.reach[job.at]
        chains = np.minimum(planned, reach)
        if job.tree is None:
            return chains
        wide = np.zeros(len(planned), dtype=np.bool_)
        wide[: len(job.tree.width)] = job.tree.width > 1
        return np.where(wide & (reach > 0), planned, chains)

    def _read(self, job: TapeJob) -> tuple[IntArray, IntArray, IntArray]:
        """The rows that read, their tokens, and the rows that have then read everything and draft (indices of E)."""
        reading = np.flatnonzero(job.depths)
        missing = job.context[reading] - self._cached[job.rows[reading]]
        tokens = missing
        if missing.sum() > self._catch_up_tokens:
            budget, shares = self._catch_up_tokens, []
            for count in missing.tolist():
                shares.append(min(count, max(budget, _USUAL_TOKENS)))
                budget -= shares[-1]
            tokens = np.array(shares, dtype=np.int64)
        self._cached[job.rows[reading]] += tokens
        return reading, tokens, reading[tokens == missing]

    def _chains(self, job: TapeJob, active: IntArray) -> tuple[DraftTree, list[tuple[int, float]]]:
        """Draft until depth or stop rule end it; the rows and cached tokens of each pass after the first."""
        width = int(job.depths.max())
        counts = np.zeros(len(job.rows), dtype=np.int64)
        certainty = np.full((2, len(counts), width), np.nan)
        passes: list[tuple[int, float]] = []
        if len(active):
            depths, ahead = job.depths[active], np.arange(width)
            known = np.stack(certainty_ahead(self.view, job.at[active, None], job.last[active, None], ahead))
            if job.stop is not None:
                depths = _stopped(job.stop, active, depths, known)
            drafted = ahead < depths[:, None]
            counts[active] = depths
            certainty[:, active] = np.where(drafted, known, np.nan)
            rows = drafted.sum(axis=0)[1 : depths.max()].tolist()
            cached = (drafted * (job.context[active, None] + ahead)).sum(axis=0, dtype=np.float64)
            passes = list(zip(rows, cached[1:].tolist(), strict=False))
            # The last drafted token was never read.
            self._cached[job.rows[active]] = job.context[active] + depths - 1
        tokens = chain_tokens(self.view.run[job.at], width)
        return DraftTree.from_chains(tokens, counts, *certainty), passes


class TapeLookup:
    """A model-free drafter, with the methods of `TapeModel`: it never lags, ends where it finds nothing, and asks no
    stop rule.

    The tape holds its draft from every position. Its confidence in a token further on is taken from that position: a
    drafter that counts has read the tokens in between by then, and is a little more confident.
    """

    def __init__(self, name: str, view: DraftView, seconds_per_row: float) -> None:
        self.view = view
        self._name = name
        self._seconds_per_row = seconds_per_row

    def cache_gap(self, rows: IntArray, context: IntArray) -> list[int]:  # noqa: ARG002 - reading takes no time
        return [0] * len(rows)

    def propose(self, job: TapeJob) -> tuple[Draft, float]:
        view, asked = self.view, int(np.count_nonzero(job.depths))
        work, seconds = (DraftWork(self._name, asked),), self._seconds_per_row * asked
        counts = np.minimum(job.depths, view.reach[job.at])
        width = int(job.depths.max())
        if job.tree is not None and view.top is not None and counts.any():
            trees = TapeTrees(view, replace(job, depths=counts, stop=None), beams=False)
            return Draft(trees.grow(np.flatnonzero(counts)), work), seconds
        confidence = None if view.top is None else self.confidence(job.at, job.last, width)
        return Draft(DraftTree.from_chains(chain_tokens(view.run[job.at], width), counts, confidence), work), seconds

    def confidence(self, at: IntArray, last: IntArray, depth: int) -> FloatArray:
        """Its confidence in the tokens that it drafts from these positions [B], NaN beyond them, [B, depth]."""
        confidence, _ = certainty_ahead(self.view, at[:, None], last[:, None], np.arange(depth))
        return np.where(np.arange(depth) < self.view.reach[at, None], confidence, np.nan)

    def keep(self, rows: IntArray, lengths: IntArray) -> None:
        """It caches nothing."""

    def free(self, row: int) -> None:
        """It caches nothing."""


class TapeTrees:
    """The trees of one drafter in one round: a `CandidateSource` over a tape.

    `passes` are the rows and cached tokens of each pass after the first, `read` [E] the right tokens that passes read.
    """

    lag = 0

    def __init__(self, view: DraftView, job: TapeJob, *, beams: bool) -> None:
        """Without `beams` only main chains are drafted on from."""
        self.beams = beams
        self._view, self._job = view, job
        self._builder = TreeBuilder(len(job.rows), job.tree)
        self.read: IntArray = np.zeros_like(job.at)
        self.passes: list[tuple[int, float]] = []

    def grow(self, active: IntArray) -> DraftTree:
        """Draft for the active rows (indices of E)."""
        TreeGrowth(self._builder, self, self._job.depths, _ENDS).run(active.tolist(), self._job.stop)
        return self._builder.build()

    def has_room(self, row: int, more: int) -> bool:  # noqa: ARG002 - there is always room
        return True

    def candidates(self, frontier: Sequence[Node], step: int) -> Sequence[Candidates]:
        if step:
            cached = sum(int(self._job.context[row]) + step for row, _ in frontier)
            self.passes.append((len(frontier), float(cached)))
        found: list[Candidates] = []
        for row, parent in frontier:
            wrong, first_choices = _wrong_tokens(self._builder.row(row), parent)
            self.read[row] += bool(step) and not wrong
            if wrong:
                tokens, confidence, entropy = self._after_wrong(row, step, wrong, first_choices=first_choices)
            else:
                tokens, confidence, entropy = self._after_text(row, step)
            found.append((zip(tokens, confidence, strict=True), entropy))
        return found

    def _after_text(self, row: int, steps: int) -> tuple[list[int], list[float], float]:
        """Tokens, confidence and entropy after `steps` tokens of the true text."""
        view, at = self._view, int(self._job.at[row]) + steps
        if at > self._job.last[row]:
            return self._after_wrong(row, steps, 0, first_choices=False)
        reach, rank, confidence = (
            int(view.reach[at]),
            int(view.rank[at]),
            self._confidence(at, self._builder.width(row)),
        )
        if not reach:
            return [], [], np.nan
        tokens = [WRONG] * len(confidence)
        if rank < len(tokens):
            tokens[rank] = RIGHT if rank == 0 or at < self._job.end[row] else RIGHT_END
        if reach == 1:
            tokens[0] = RIGHT_END if rank == 0 else WRONG_END
        return tokens, confidence, float(view.entropy[at])

    def _after_wrong(
        self, row: int, steps: int, wrong: int, *, first_choices: bool
    ) -> tuple[list[int], list[float], float]:
        """The same after `wrong` wrong tokens, each of them its drafter's first choice or not."""
        view, at = self._view, int(self._job.at[row]) + steps
        last = int(self._job.last[row])
        known = min(at, last)
        confidence, entropy = self._confidence(known, self._builder.width(row)), float(view.entropy[known])
        tokens, miss, after = [WRONG] * len(confidence), at - wrong, view.after_miss
        if not first_choices or miss > last:
            return tokens, confidence, entropy
        if int(view.reach[miss]) == wrong + 1:
            tokens[0] = WRONG_END
        if after is not None and wrong <= after.confidence.shape[1]:
            first = float(after.confidence[miss, wrong - 1])
            if not np.isnan(first):
                share = (1.0 - first) / max(1.0 - confidence[0], 1e-6)
                confidence = [first, *(min(other * share, first) for other in confidence[1:])]
                entropy = float(after.entropy[miss, wrong - 1])
        return tokens, confidence, entropy

    def _confidence(self, at: int, width: int) -> list[float]:
        """The drafter's confidence in its candidates given the true text, as far as they were recorded."""
        first, top = float(self._view.confidence[at]), self._view.top
        return [first] if top is None else [first, *top[at, 1:width].tolist()]


def _wrong_tokens(nodes: RowNodes, node: int) -> tuple[int, bool]:
    """The number of wrong tokens that lead to a node, itself included; whether all are their drafter's first choice."""
    count, first_choices = 0, True
    while node != ROOT and nodes.tokens[node] < RIGHT:
        first_choices &= nodes.ranks[node] == 0
        count, node = count + 1, nodes.parents[node]
    return count, first_choices


def _stopped(table: StopTable, active: IntArray, depths: IntArray, certainty: FloatArray) -> IntArray:
    """Tokens that rows draft under a stop rule, [rows]; `certainty` [2, rows, depth] is of all that they could."""
    drafted, left, survival = np.zeros_like(depths), np.arange(len(depths)), np.ones(len(depths))
    for step in range(1, certainty.shape[2] + 1):
        drafted[left] = step
        left = left[depths[left] > step]
        if not len(left):
            break
        confidence, entropy = certainty[:, left, step - 1]
        survival[left] *= table.chances(step, active[left], confidence)
        left = left[table.continues(step, active[left], confidence, entropy, survival=survival[left])]
    return drafted


def certainty_ahead(view: DraftView, at: IntArray, last: IntArray, ahead: IntArray) -> tuple[FloatArray, FloatArray]:
    """Confidence and entropy of the token `ahead` tokens after the first, of chains that start at positions `at`.

    All arrays broadcast; positions behind `last` count as `last`.
    """
    here = np.minimum(at + ahead, last)
    confidence, entropy, after = view.confidence[here], view.entropy[here], view.after_miss
    past = ahead - view.run[at] - 1  # tokens since the wrong one
    if after is None or not (past >= 0).any():
        return confidence, entropy
    wrong = np.minimum(at + view.run[at], last)
    past, wrong = np.broadcast_arrays(past, wrong)
    known = (past >= 0) & (past < after.confidence.shape[1])
    past = np.where(known, past, 0)
    known &= ~np.isnan(after.confidence[wrong, past])
    return (
        np.where(known, after.confidence[wrong, past], confidence),
        np.where(known, after.entropy[wrong, past], entropy),
    )


def chain_tokens(run: IntArray, width: int) -> IntArray:
    """Stand-ins for the tokens of chains [B, width] of which the first `run` [B] are right."""
    return np.where(np.arange(width) < run[:, None], RIGHT, WRONG)
