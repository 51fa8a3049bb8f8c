"""Drafters of a simulated world: what the engine's would do with a tape's text, and how long they would take.

`ModelDraft` reads, lags and drafts by the rules of the engine's draft model, `LookupDraft` by those of its n-gram
lookup. They know positions and seconds, no tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from adaptspec.draft_tables import StopTable
from adaptspec.simulation.cost_profiles import MachineCosts
from adaptspec.simulation.tape import DraftView
from adaptspec.types import FloatArray, IntArray

# As in the engine: after full acceptance two tokens are to be read, which every round brings.
_USUAL = 2


@dataclass(frozen=True)
class Ask:
    """What to draft in one round. `at` indexes the tape's position after each row's `context` tokens; `first` and
    `last` are the first and the last position recorded of its request.
    """

    rows: IntArray  # [B]
    depths: IntArray  # [B], 0 leaves a row out
    context: IntArray  # [B]
    at: IntArray  # [B]
    first: IntArray  # [B]
    last: IntArray  # [B]
    stop: StopTable | None


@dataclass(frozen=True)
class Proposal:
    """What was drafted: tokens submitted [B], how sure the drafter was [B, D], and what it took."""

    counts: IntArray
    confidence: FloatArray
    entropy: FloatArray
    steps: int
    caught_up: int
    seconds: float


class SimulatedDrafter(Protocol):
    """One drafter of the world."""

    @property
    def view(self) -> DraftView:
        """What the tape says of it."""

    def lag(self, rows: IntArray, context: IntArray) -> IntArray | None:
        """Tokens it must still read beyond the usual one or two, [B]; None for one that never lags."""

    def propose(self, ask: Ask) -> Proposal:
        """Draft for the rows with a depth."""

    def commit(self, rows: IntArray, valid: IntArray) -> None:
        """It drafted for these rows; the first `valid` tokens were kept of each."""

    def free(self, row: int) -> None:
        """The request in `row` has ended."""


class ModelDraft:
    """A draft model: reads what it missed, at most so many tokens a round, then drafts step by step.

    Where the tape does not know how sure the model is behind a wrong token, it is taken to be as sure as it is of the
    true text.
    """

    def __init__(self, name: str, view: DraftView, costs: MachineCosts, max_rows: int, catch_up_tokens: int) -> None:
        self.view = view
        self._name = name
        self._costs = costs
        self._own = costs.drafters[name]
        self._cached: IntArray = np.zeros(max_rows, dtype=np.int64)
        self._catch_up_tokens = catch_up_tokens

    def lag(self, rows: IntArray, context: IntArray) -> IntArray | None:
        """See `SimulatedDrafter.lag`."""
        lag: IntArray = np.maximum(context - self._cached[rows] - _USUAL, 0)
        return lag

    def propose(self, ask: Ask) -> Proposal:
        """See `SimulatedDrafter.propose`."""
        ask = replace(ask, depths=np.minimum(ask.depths, self.view.reach[ask.at]))
        size, deepest = len(ask.rows), int(ask.depths.max())
        fed, parts, active = self._read(ask)
        sheet = _Sheet.blank(size, deepest)
        caught_up = int(np.maximum(parts - _USUAL, 0).sum())
        seconds = self._own.start + self._own.per_row * len(fed) + self._own.catch_up_per_token * caught_up
        if not len(active):  # nobody drafts yet, but prompts are read on
            return sheet.proposal(0, caught_up, seconds + self._step(ask, fed, 0))
        seconds += self._step(ask, active, 0, len(fed))
        if ask.stop is None:
            steps, more = self._draft_all(ask, active, sheet)
        else:
            steps, more = self._draft_until(ask, active, sheet, ask.stop)
        # The last token drafted was never fed.
        self._cached[ask.rows[active]] = ask.context[active] + sheet.counts[active] - 1
        return sheet.proposal(steps, caught_up, seconds + more)

    def commit(self, rows: IntArray, valid: IntArray) -> None:
        """See `SimulatedDrafter.commit`."""
        self._cached[rows] = np.minimum(self._cached[rows], valid)

    def free(self, row: int) -> None:
        """See `SimulatedDrafter.free`."""
        self._cached[row] = 0

    def _draft_all(self, ask: Ask, active: IntArray, sheet: _Sheet) -> tuple[int, float]:
        """Draft to the full depth, all steps at once: steps, and seconds of those after the first."""
        depths = ask.depths[active]
        sheet.counts[active] = depths
        steps = int(depths.max())
        ahead = np.arange(steps)
        drafted = ahead < depths[:, None]
        sure, spread = self._certainty(ask, active[:, None], ahead)
        sheet.confidence[active, :steps] = np.where(drafted, sure, np.nan)
        sheet.entropy[active, :steps] = np.where(drafted, spread, np.nan)
        rows = np.count_nonzero(drafted, axis=0).tolist()
        cached = [0.0] * steps
        if self._own.per_cached_token:
            cached = (drafted * (ask.context[active, None] + ahead)).sum(axis=0).tolist()
        return steps, sum(self._costs.step_seconds(self._name, rows[i], cached[i]) for i in range(1, steps))

    def _draft_until(self, ask: Ask, active: IntArray, sheet: _Sheet, table: StopTable) -> tuple[int, float]:
        """Draft step by step until depth or stop rule end it: steps, and seconds of those after the first."""
        steps, seconds, stop = 0, 0.0, table.begin(active)
        while True:
            sure, spread = self._certainty(ask, active, steps)
            sheet.confidence[active, steps], sheet.entropy[active, steps] = sure, spread
            steps += 1
            sheet.counts[active] = steps
            going = ask.depths[active] > steps
            if going.any():
                going &= stop(steps, active, sure, spread)
            active = active[going]
            if not len(active):
                return steps, seconds
            seconds += self._step(ask, active, steps)

    def _certainty(self, ask: Ask, rows: IntArray, ahead: IntArray | int) -> tuple[FloatArray, FloatArray]:
        """Confidence and entropy of the token that comes `ahead` drafted ones, in these rows of the batch."""
        view, at, last = self.view, ask.at[rows], ask.last[rows]
        where = np.minimum(at + ahead, last)
        sure, spread, after_miss = view.confidence[where], view.entropy[where], view.after_miss
        past = ahead - view.run[at] - 1  # tokens since the wrong one
        if after_miss is None or not (past >= 0).any():
            return sure, spread
        wrong, most = np.minimum(at + view.run[at], last), after_miss.confidence.shape[1]
        past, wrong = np.broadcast_arrays(past, wrong)
        known = (past >= 0) & (past < most)
        known &= ~np.isnan(after_miss.confidence[wrong, np.where(known, past, 0)])
        past = np.where(known, past, 0)
        return (
            np.where(known, after_miss.confidence[wrong, past], sure),
            np.where(known, after_miss.entropy[wrong, past], spread),
        )

    def _step(self, ask: Ask, active: IntArray, step: int, rows: int | None = None) -> float:
        cached = 0.0
        if self._own.per_cached_token:
            cached = float(ask.context[active].sum() + step * len(active))
        return self._costs.step_seconds(self._name, len(active) if rows is None else rows, cached)

    def _read(self, ask: Ask) -> tuple[IntArray, IntArray, IntArray]:
        """Who reads, how many tokens each, and who has then read all of it and drafts (positions in the batch)."""
        fed = np.flatnonzero(ask.depths)
        missing = ask.context[fed] - self._cached[ask.rows[fed]]
        parts = missing
        if missing.sum() > self._catch_up_tokens:
            budget, shares = self._catch_up_tokens, []
            for tokens in missing.tolist():
                shares.append(min(tokens, max(budget, _USUAL)))
                budget -= shares[-1]
            parts = np.array(shares, dtype=np.int64)
        self._cached[ask.rows[fed]] += parts
        return fed, parts, fed[parts == missing]


@dataclass(frozen=True)
class _Sheet:
    """A proposal while it is being filled in."""

    counts: IntArray
    confidence: FloatArray
    entropy: FloatArray

    @classmethod
    def blank(cls, rows: int, deepest: int) -> _Sheet:
        both = np.full((2, rows, deepest), np.nan)
        return cls(np.zeros(rows, dtype=np.int64), both[0], both[1])

    def proposal(self, steps: int, caught_up: int, seconds: float) -> Proposal:
        return Proposal(self.counts, self.confidence, self.entropy, steps, caught_up, seconds)


class LookupDraft:
    """An n-gram lookup: never lags, ends where it finds nothing, and asks no stop rule."""

    def __init__(self, name: str, view: DraftView, costs: MachineCosts) -> None:
        self.view = view
        self._per_row = costs.drafters[name].per_row

    def lag(self, rows: IntArray, context: IntArray) -> IntArray | None:  # noqa: ARG002 - reading is free of charge
        """See `SimulatedDrafter.lag`."""
        return None

    def propose(self, ask: Ask) -> Proposal:
        """See `SimulatedDrafter.propose`."""
        counts = np.minimum(ask.depths, self.view.reach[ask.at])
        unknown = np.full((len(counts), int(ask.depths.max())), np.nan)
        return Proposal(counts, unknown, unknown, 0, 0, self._per_row * int(np.count_nonzero(ask.depths)))

    def commit(self, rows: IntArray, valid: IntArray) -> None:
        """See `SimulatedDrafter.commit`."""

    def free(self, row: int) -> None:
        """See `SimulatedDrafter.free`."""
