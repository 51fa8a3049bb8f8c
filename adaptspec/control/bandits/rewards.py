"""What arms earned and spent: from rounds, to tokens and seconds of each arm that a round says something about.

Knows the cost table and which arm a row played; it does not know who learns from it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adaptspec.control.bandits.arms import Arms
from adaptspec.control.bandits.notes import Rounds, Scores
from adaptspec.control.cost import CostTable
from adaptspec.types import FloatArray, IntArray

# A round that took more than so many times what it should, or less than one over it, is a hiccup: no arm's doing.
_HICCUP = 2.0


class Rewarder:
    """Earned: emitted tokens. Spent: seconds attributed to the row, over a plain round's seconds per row. So off is 1.

    A round's seconds are split over its rows in proportion to what the cost table says each of them asked for: its
    share of a plain round, its draft steps, its extra tokens in the verify pass, and what its drafter caught up. A row
    at off is thus not charged for the drafts of others. What catching up took is left out of `spent`: it is the price
    of entering, not of staying, and is charged to every arm that would have to pay it when arms are compared
    (`catch_up`). Counted into a short try it would make an arm look bad for good.

    A row that drafted d tokens with an arm says exactly what the shallower arms of the family would have
    got accepted: min(accepted, depth). Their time is the cost table's for the same round cut to that depth.
    A depth above what was really run (a guard or a limit came between) is not credited at all.
    """

    def __init__(self, arms: Arms, cost: CostTable, drafters: tuple[str, ...]) -> None:
        self._arms = arms
        self._cost = cost
        self._drafters = drafters
        # Per drafter the arms that draft with it, and their depths.
        each = ((d, np.flatnonzero((arms.drafters == d) & (arms.depths > 0))) for d in set(arms.drafters.tolist()))
        self._of_drafter = [(d, here, arms.depths[here].astype(np.float64)) for d, here in each]
        # The drafters of arms that draft.
        self.drafting: list[int] = sorted(set(arms.drafters[(arms.depths > 0) & ~arms.opaque].tolist()))
        deepest = int(arms.depths.max())
        # Cuts: every depth of an arm, and the deepest of all for what was really drafted.
        self._cuts: IntArray = np.unique(np.append(arms.depths[arms.depths > 0], deepest))
        self._cut_of: IntArray = np.minimum(np.searchsorted(self._cuts, arms.depths), len(self._cuts) - 1)

    def rewards(self, rounds: Rounds) -> FloatArray:
        """[N, K, 3]: seen (1 or 0), earned and spent, of each row-round with each arm; zero where nothing was seen."""
        arms = self._arms
        drafted = np.minimum(rounds.drafted[:, None], self._cuts)  # [N, L]
        spent, unit = self._spent(rounds, drafted)
        earned = np.minimum(rounds.emitted[:, None], np.minimum(rounds.accepted[:, None], self._cuts) + 1)
        # Reading what it has missed may take a drafter several rounds, in which its rows do not draft yet.
        reading = (rounds.drafted == 0) & (rounds.lag > 0)
        seen = arms.reveals[rounds.arms] & (arms.depths <= rounds.depths[:, None]) & ~reading[:, None]
        if arms.opaque.any():
            played = np.arange(len(arms)) == rounds.arms[:, None]
            as_wished = (rounds.depths == rounds.wished)[:, None]
            seen = np.where(arms.opaque, played & as_wished, seen)
        told = np.empty((*seen.shape, 3))
        told[..., 0] = seen
        told[..., 1] = earned[:, self._cut_of]
        told[..., 2] = spent[:, self._cut_of]
        every = np.arange(len(told))
        slowness = self._slowness(rounds, spent[:, -1], unit)
        told[every, rounds.arms, 2] = spent[:, -1] * slowness[rounds.number]
        told[every, rounds.arms, 1] = rounds.emitted
        told[..., 1:] *= told[..., :1]
        return told

    def scored(self, rounds: Rounds, drafter: int, scores: Scores) -> FloatArray:
        """[S, K, 3] the same for a drafter that was scored where it did not run, with its arms alone.

        A row that emitted e tokens tells exactly what the drafter would have got at depths up to e: what it would have
        proposed is known, and so are all tokens that this would have been compared with. Of deeper arms it tells
        nothing, not even where the draft went wrong at once: they would be seen failing only. Seconds are the table's.
        """
        arms, at = self._arms, scores.at
        emitted = rounds.emitted[at]
        mine = (arms.drafters == drafter) & (arms.depths > 0) & ~arms.opaque
        drafted = np.minimum(scores.drafted, emitted)
        as_if = replace(rounds, arms=np.full(len(at), np.argmax(mine)), drafted=drafted, number=rounds.number[at])
        spent, _ = self._spent(as_if, np.minimum(drafted[:, None], self._cuts))
        seen = mine & (arms.depths <= emitted[:, None])
        told = np.empty((*seen.shape, 3))
        told[..., 0] = seen
        told[..., 1] = np.minimum(scores.accepted[:, None], arms.depths) + 1
        told[..., 2] = spent[:, self._cut_of]
        told[..., 1:] *= told[..., :1]
        return told

    def arm_costs(self, size: int, context: float) -> FloatArray:
        """[K] seconds of a round of `size` rows all at an arm, over a plain round's: what an arm spends per round."""
        plain = self._cost.plain_seconds(size, context)
        costs = np.ones(len(self._arms))
        for drafter, here, depths in self._of_drafter:
            seconds = self._cost.round_seconds(self._drafters[drafter], size, depths, depths * size, context)
            costs[here] = seconds / plain
        return costs

    def catch_up(self, size: int, context: float) -> FloatArray:
        """[K] what one token of lag costs a row with each arm, in the unit of `spent`."""
        unit = self._cost.plain_seconds(size, context) / size
        per_token = np.array([self._cost.catch_up_seconds(name, 1.0) for name in self._drafters])
        return np.where(self._arms.depths > 0, per_token[self._arms.drafters] / unit, 0.0)

    def _spent(self, rounds: Rounds, drafted: IntArray) -> tuple[FloatArray, FloatArray]:
        """[N, L] what rows spend if the whole round is cut to a depth, by the cost table; [M] its unit, seconds."""
        count, cuts = len(rounds.size), len(self._cuts)
        cells = (rounds.number[:, None] * cuts + np.arange(cuts)).ravel()
        tokens = np.bincount(cells, drafted.ravel(), count * cuts).reshape(count, cuts)  # [M, L]
        deepest = np.zeros(count, dtype=np.int64)
        np.maximum.at(deepest, rounds.number, rounds.drafted)
        steps = np.minimum(deepest[:, None], self._cuts)
        context = float(rounds.context.sum()) / count
        rates, unit = np.empty((len(self._drafters), count, cuts)), np.empty(count)
        for size in set(rounds.size.tolist()):
            here = rounds.size == size
            rates[:, here] = self._rates(size, tokens[here], steps[here], context)
            unit[here] = self._cost.plain_seconds(size, context) / size
        seconds = np.maximum(rates[self._arms.drafters[rounds.arms], rounds.number] * drafted, 0.0)
        return 1.0 + seconds / unit[rounds.number, None], unit

    def _slowness(self, rounds: Rounds, spent: FloatArray, unit: FloatArray) -> FloatArray:
        """[M] what rounds took over what they should have; 1 where their seconds hold the work of others too."""
        per_token = max((self._cost.catch_up_seconds(name, 1.0) for name in self._drafters), default=0.0)
        expected = np.bincount(rounds.number, spent, len(unit)) * unit + per_token * rounds.caught_up
        ratio = np.minimum(np.maximum(rounds.seconds / expected, 1.0 / _HICCUP), _HICCUP)
        return np.where(rounds.alone, ratio, 1.0)

    def _rates(self, size: int, tokens: FloatArray, steps: IntArray, context: float) -> FloatArray:
        """[drafters, m, L] seconds that a token takes to draft and verify in rounds of `size` rows that draft so many

        `tokens` in so many `steps`, both [m, L].
        """
        cost, each = self._cost, np.maximum(tokens, 1.0)
        verify = cost.verify_curve(size, size + tokens, context) - cost.verify_seconds(size, size, context)
        overhead = cost.overhead_seconds(size, drafting=True) - cost.overhead_seconds(size, drafting=False)
        price = (verify + overhead) / each
        rates = np.empty((len(self._drafters), *tokens.shape))
        for rate, name in zip(rates, self._drafters, strict=True):
            per_step, per_row = cost.step_line(name, size)
            rate[:] = price + (per_step * (steps / each) + per_row + cost.start_seconds(name) / each)
        return rates
