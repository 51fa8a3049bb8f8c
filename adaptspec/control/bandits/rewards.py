"""What arms earned and spent: from rounds to tokens and seconds of each arm that a round says something about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from adaptspec.control.bandits.arms import Arms
from adaptspec.control.cost import CostTable
from adaptspec.types import FloatArray, IntArray, RoundRecord

# A round that took more than so many times what it should, or less than one over it, is a hiccup: no arm's doing.
_HICCUP = 2.0


class Note(NamedTuple):
    """A round: depths asked for [B], what each row's drafter had to catch up [B], whether no other rows took part."""

    wished: IntArray
    lag: IntArray
    alone: bool
    record: RoundRecord


class Rewarder:
    """Earned: emitted tokens. Spent: seconds attributed to the row, over a plain round's seconds per row. So off is 1.

    A round's seconds are split over its rows in proportion to what the cost table says each of them asked for: its
    share of a plain round, its draft steps and its extra tokens in the verify pass. A row at off is thus not charged
    for the drafts of others. What catching up took is left out of `spent`: it is the price of entering, not of staying,
    and is charged to every arm that would have to pay it when arms are compared (`catch_up`).

    A row that drafted d tokens with an arm says exactly what the shallower arms of the family would have got accepted:
    min(accepted, depth), in the cost table's time for the round cut to that depth. A depth above what was really run (a
    guard or a limit came between) is not credited.
    """

    def __init__(self, arms: Arms, cost: CostTable, drafters: tuple[str, ...]) -> None:
        self._arms, self._cost, self._drafters = arms, cost, drafters
        # Cuts: every depth of an arm, and the deepest of all for what was really drafted.
        self._cuts: IntArray = np.unique(np.append(arms.depths[arms.depths > 0], arms.depths.max()))
        self._cut_of: IntArray = np.minimum(np.searchsorted(self._cuts, arms.depths), len(self._cuts) - 1)

    def rewards(self, arms: IntArray, size: int, notes: Sequence[Note]) -> FloatArray:
        """[M, B, K, 3]: seen (1 or 0), earned and spent, by the rows that played `arms` [B] in M rounds of `size` rows

        in all; zero where nothing was seen. Of off only the rounds are told.
        """
        kinds, records = self._arms, [note.record for note in notes]
        depths = np.stack([record.depths for record in records])
        drafted = np.stack([record.drafted for record in records])
        told = np.zeros((*drafted.shape, len(kinds), 3))
        every = np.arange(len(arms))
        if depths.any() or kinds.opaque.any():
            # Reading what it has missed may take a drafter several rounds, in which its rows do not draft yet.
            reading = (drafted == 0) & (np.stack([note.lag for note in notes]) > 0)
            seen = kinds.reveals[arms] & (kinds.depths <= depths[..., None]) & ~reading[..., None]
            if kinds.opaque.any():
                as_wished = depths == np.stack([note.wished for note in notes])
                played = np.arange(len(kinds)) == arms[:, None]
                seen = np.where(kinds.opaque, played & as_wished[..., None], seen)
            emitted = np.stack([record.emitted for record in records])
            accepted = np.stack([record.accepted for record in records])
            spent, whole = self._spent(arms, size, drafted, notes)
            earned = np.minimum(emitted[..., None], np.minimum(accepted[..., None], self._cuts) + 1)
            told[..., 0] = seen
            told[..., 1] = earned[..., self._cut_of]
            told[..., 2] = spent[..., self._cut_of]
            told[:, every, arms, 1], told[:, every, arms, 2] = emitted, whole
            told[..., 1:] *= told[..., :1]
        if kinds.off is not None:
            # Nothing is earned that was not known, but time goes by.
            told[:, arms == kinds.off, kinds.off, 0] = 1.0
        return told

    def arm_costs(self, size: int, context: float) -> tuple[FloatArray, FloatArray]:
        """[K] seconds of a round of `size` rows all at an arm, and of one token of lag of a row, in plain rounds."""
        arms, costs, catch_up = self._arms, np.ones(len(self._arms)), np.zeros(len(self._arms))
        plain = self._cost.plain_seconds(size, context)
        for which, name in enumerate(self._drafters):
            here = (arms.drafters == which) & (arms.depths > 0)
            depths = arms.depths[here].astype(np.float64)
            costs[here] = self._cost.round_seconds(name, size, depths, depths * size, context) / plain
            catch_up[here] = self._cost.catch_up_seconds(name, 1.0) * size / plain
        return costs, catch_up

    def _spent(
        self, arms: IntArray, size: int, drafted: IntArray, notes: Sequence[Note]
    ) -> tuple[FloatArray, FloatArray]:
        """[M, B, L] what rows spend by the cost table if the round is cut to a depth; [M, B] what they did spend."""
        context, names = float(np.mean([note.record.context.sum() for note in notes])), self._drafters
        unit = self._cost.plain_seconds(size, context) / size
        cut = np.minimum(drafted[..., None], self._cuts)
        tokens, steps = cut.sum(axis=1), cut.max(axis=1).astype(np.float64)  # [M, L]
        rounds = [self._cost.round_seconds(name, size, steps, tokens.astype(np.float64), context) for name in names]
        rates = (np.array(rounds) - size * unit) / np.maximum(tokens, 1)  # [drafters, M, L] seconds of a drafted token
        each = np.moveaxis(rates[self._arms.drafters[arms]], 0, 1)
        spent = 1.0 + np.maximum(each * cut, 0.0) / unit
        seconds = np.array([note.record.total_seconds for note in notes])
        caught_up = np.array([note.record.caught_up for note in notes])
        per_token = max((self._cost.catch_up_seconds(name, 1.0) for name in names), default=0.0)
        ratio = seconds / (spent[..., -1].sum(axis=1) * unit + per_token * caught_up)
        slowness = np.where([note.alone for note in notes], np.clip(ratio, 1.0 / _HICCUP, _HICCUP), 1.0)
        return spent, spent[..., -1] * slowness[:, None]
