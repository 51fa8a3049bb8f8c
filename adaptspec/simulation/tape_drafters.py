"""Drafters on a tape: what the engine's would make of recorded text, and how long they would take.

`TapeModel` reads, lags and drafts by the rules of the engine's draft model, `TapeModelFree` by those of its model-free
ones.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adaptspec.decision_tables import StopTable
from adaptspec.models.draft import Draft
from adaptspec.simulation.cost_profiles import MachineCosts
from adaptspec.simulation.draft_view import DraftView
from adaptspec.simulation.tape_trees import TapeJob, TapeTrees, chain_tokens
from adaptspec.types import FloatArray, IntArray

# As in the engine: after full acceptance two tokens are to be read, which every round brings.
_USUAL = 2


class TapeModel:
    """A draft model: reads what it missed, at most so many tokens a round, then drafts step by step. Where the tape
    does not know how sure the model is behind a wrong token, it is taken to be as sure as it is of the true text;
    `TapeTrees` says what is known where drafts branch.
    """

    def __init__(self, name: str, view: DraftView, costs: MachineCosts, max_rows: int, catch_up_tokens: int) -> None:
        self.view = view
        self._name = name
        self._costs = costs
        self._own = costs.drafters[name]
        self._cached: IntArray = np.zeros(max_rows, dtype=np.int64)
        self._catch_up_tokens = catch_up_tokens

    def cache_gap(self, rows: IntArray, context: IntArray) -> list[int]:
        """Tokens it must still read beyond the usual one or two, [B]."""
        lag: list[int] = np.maximum(context - self._cached[rows] - _USUAL, 0).tolist()
        return lag

    def propose(self, job: TapeJob) -> tuple[Draft, float]:
        """Drafts for the rows with a depth, and the seconds they take."""
        job = replace(job, depths=self._within(job))
        fed, parts, active = self._read(job)
        counts = np.zeros(len(job.rows), dtype=np.int64)
        certainty = np.full((2, len(counts), int(job.depths.max())), np.nan)
        caught_up = int(np.maximum(parts - _USUAL, 0).sum())
        seconds = self._own.start + self._own.per_row * len(fed) + self._own.catch_up_per_token * caught_up
        steps = 0
        if not len(active):  # nobody drafts yet, but prompts are read on
            seconds += self._step(job, fed, 0)
        else:
            seconds += self._step(job, active, 0, len(fed))
            if job.tree is not None and (job.tree.width[active] > 1).any():
                trees = TapeTrees(self.view, job, active, self._price)
                draft = trees.grow(len(counts), caught_up)
                self._cached[job.rows[active]] = (job.context + trees.read)[active]
                return draft, seconds + trees.seconds
            steps, more = self._draft(job, active, counts, certainty)
            seconds += more
            # The last token drafted was never fed.
            self._cached[job.rows[active]] = job.context[active] + counts[active] - 1
        tokens = chain_tokens(self.view.run[job.at], certainty.shape[2])
        return Draft(tokens, counts, certainty[0], certainty[1], steps=steps, caught_up=caught_up), seconds

    def keep(self, rows: IntArray, lengths: IntArray) -> None:
        """It drafted for these rows; so many tokens were kept of each."""
        self._cached[rows] = np.minimum(self._cached[rows], lengths)

    def free(self, row: int) -> None:
        self._cached[row] = 0

    def _within(self, job: TapeJob) -> IntArray:
        """Depths that the model goes to, as far as that is known beforehand: where a tree ends, its own nodes say."""
        reach = self.view.reach[job.at]
        if job.tree is None:
            return np.minimum(job.depths, reach)
        wide = job.tree.width > 1
        return np.minimum(job.depths, np.where(wide & (reach > 0), job.tree.nodes, reach))

    def _price(self, rows: int, cached: float) -> float:
        return self._costs.step_seconds(self._name, rows, cached)

    def _draft(self, job: TapeJob, active: IntArray, counts: IntArray, certainty: FloatArray) -> tuple[int, float]:
        """Draft until depth or stop rule end it, all steps at once: steps, and seconds of those after the first."""
        depths = job.depths[active]
        ahead = np.arange(int(depths.max()))
        known = np.stack(
            certainty_ahead(self.view, job.at[active, None], job.last[active, None], ahead)
        )  # [2, rows, depth]
        if job.stop is not None:
            depths = _stopped(job.stop, active, depths, known)
        counts[active] = depths
        steps = int(depths.max())
        drafted = ahead[:steps] < depths[:, None]
        certainty[:, active, :steps] = np.where(drafted, known[:, :, :steps], np.nan)
        rows = np.count_nonzero(drafted, axis=0).tolist()
        cached = (drafted * (job.context[active, None] + ahead[:steps])).sum(axis=0).tolist()
        return steps, sum(self._costs.step_seconds(self._name, rows[i], cached[i]) for i in range(1, steps))

    def _step(self, job: TapeJob, active: IntArray, step: int, rows: int | None = None) -> float:
        cached = 0.0
        if self._own.per_cached_token:
            cached = float(job.context[active].sum() + step * len(active))
        return self._costs.step_seconds(self._name, len(active) if rows is None else rows, cached)

    def _read(self, job: TapeJob) -> tuple[IntArray, IntArray, IntArray]:
        """Who reads, how many tokens each, and who has then read all of it and drafts (positions in the batch)."""
        fed = np.flatnonzero(job.depths)
        missing = job.context[fed] - self._cached[job.rows[fed]]
        parts = missing
        if missing.sum() > self._catch_up_tokens:
            budget, shares = self._catch_up_tokens, []
            for tokens in missing.tolist():
                shares.append(min(tokens, max(budget, _USUAL)))
                budget -= shares[-1]
            parts = np.array(shares, dtype=np.int64)
        self._cached[job.rows[fed]] += parts
        return fed, parts, fed[parts == missing]


def _stopped(table: StopTable, active: IntArray, depths: IntArray, certainty: FloatArray) -> IntArray:
    """How many tokens rows draft under a stop rule, [rows]; `certainty` [2, rows, depth] is of all they could."""
    drafted, left, stop = np.zeros_like(depths), np.arange(len(depths)), table.begin(active)
    for step in range(1, certainty.shape[2] + 1):
        drafted[left] = step
        going = depths[left] > step
        if going.any():
            going &= stop(step, active[left], *certainty[:, left, step - 1])
        left = left[going]
    return drafted


def certainty_ahead(view: DraftView, at: IntArray, last: IntArray, ahead: IntArray) -> tuple[FloatArray, FloatArray]:
    """Confidence and entropy of the token that comes `ahead` drafted ones, of chains that start `at` positions."""
    where = np.minimum(at + ahead, last)
    sure, spread, after_miss = view.confidence[where], view.entropy[where], view.after_miss
    past = ahead - view.run[at] - 1  # tokens since the wrong one
    if after_miss is None or not (past >= 0).any():
        return sure, spread
    wrong, most = np.minimum(at + view.run[at], last), after_miss.confidence.shape[1]
    past, wrong = np.broadcast_arrays(past, wrong)
    known = (past >= 0) & (past < most)
    past = np.where(known, past, 0)
    known &= ~np.isnan(after_miss.confidence[wrong, past])
    return (
        np.where(known, after_miss.confidence[wrong, past], sure),
        np.where(known, after_miss.entropy[wrong, past], spread),
    )


class TapeModelFree:
    """A model-free drafter: never lags, ends where it finds nothing, and asks no stop rule.

    What it drafts and how much of it is right was recorded from every position. How sure it is of a token further on is
    taken from there: one that counts would have read the tokens in between by then, and be a little surer.
    """

    def __init__(self, view: DraftView, seconds_per_row: float) -> None:
        self.view = view
        self._seconds_per_row = seconds_per_row

    def cache_gap(self, rows: IntArray, context: IntArray) -> list[int]:  # noqa: ARG002 - reading is free of charge
        return [0] * len(rows)

    def propose(self, job: TapeJob) -> tuple[Draft, float]:
        """Drafts for the rows with a depth, and the seconds they take."""
        view, seconds = self.view, self._seconds_per_row * int(np.count_nonzero(job.depths))
        counts = np.minimum(job.depths, view.reach[job.at])
        width = int(job.depths.max())
        if job.tree is not None and view.top is not None and counts.any():
            job = replace(job, depths=counts, stop=None)
            trees = TapeTrees(view, job, np.flatnonzero(counts), lambda rows, cached: 0.0, beams=False)  # noqa: ARG005
            return replace(trees.grow(len(counts), 0), steps=0), seconds
        unknown = np.full((len(counts), width), np.nan)
        sure = unknown
        if view.top is not None:
            sure = np.where(np.arange(width) < counts[:, None], self.stated(job.at, job.last, width), np.nan)
        return Draft(chain_tokens(view.run[job.at], width), counts, sure, unknown), seconds

    def stated(self, at: IntArray, last: IntArray, most: int) -> FloatArray:
        """How sure it is of the tokens that it drafts from these positions [B], as far as it drafts any, [B, most]."""
        sure, _ = certainty_ahead(self.view, at[:, None], last[:, None], np.arange(most))
        return np.where(np.arange(most) < self.view.reach[at, None], sure, np.nan)

    def keep(self, rows: IntArray, lengths: IntArray) -> None:
        pass

    def free(self, row: int) -> None:
        pass
