"""How far drafts branch: a node is submitted while what it is expected to keep is above what verifying it costs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from adaptspec.control.algorithms.algorithm import Choice, ExpectedValue
from adaptspec.control.algorithms.round_terms import ModelTerms
from adaptspec.control.stopping import slopes
from adaptspec.decision_tables import TreeTable
from adaptspec.types import FloatArray, IntArray

_BINS = 100  # of confidence: most side nodes are unlikely, and many cheap ones pay together


@dataclass
class Branching:
    """Writes the tree table of each round.

    A node pays if P(it is kept) > goodput x the seconds that one more verified token takes: the optimality condition of
    a ratio of sums, as for going on (see `MarginalGoodputStop`), at the same price for the whole batch. So trees grow
    where a pass has room, and vanish in large batches. Without an algorithm that knows prices, every node within the
    ceilings is submitted; one that does, but runs no model, drafts chains.
    """

    max_width: int
    max_nodes: int
    _made: tuple[ExpectedValue | None, bytes, TreeTable] | None = field(default=None, init=False)

    def table(self, choice: Choice) -> TreeTable | None:
        """For the rows of a choice; the same object while nothing changes. None: chains, as the prices are not told."""
        value, made = choice.value, self._made
        if value is None and choice.expected is not None:
            return None
        who = choice.drafter.tobytes()
        if made is None or made[0] is not value or made[1] != who:
            made = self._made = value, who, self._table(value, choice.drafter)
        return made[2]

    def _table(self, value: ExpectedValue | None, drafter: IntArray) -> TreeTable:
        rows = len(drafter)
        width, nodes = np.full(rows, self.max_width), np.full(rows, self.max_nodes)
        if value is None:
            return TreeTable(width, nodes, np.zeros(rows), np.ones((rows, 1, 1)))
        floor = value.goodput * _seconds(value)
        # Who has no calibration is believed: else all that a model-free drafter knows would be submitted.
        stated = (np.arange(_BINS) + 0.5) / _BINS
        calibration: FloatArray = np.tile(stated, (rows, 1 + len(value.models[0].chances), 1))
        for model in value.models:
            mine = drafter == model.which
            calibration[mine] = _chances(model, mine)
        return TreeTable(width, nodes, np.full(rows, floor), calibration)


def _chances(model: ModelTerms, mine: FloatArray) -> FloatArray:
    """P(a node is kept) [rows, ranks, bins] for some rows: a chain's as calibrated, others in what they state."""
    stated = (np.arange(_BINS) + 0.5) / _BINS
    chain = np.repeat(model.calibration[mine], _BINS // model.calibration.shape[1], axis=1)
    sides = np.minimum(model.chances[:, None] * stated, 1.0)
    return np.concatenate((chain[:, None], np.broadcast_to(sides, (len(chain), *sides.shape))), axis=1)


def _seconds(value: ExpectedValue) -> float:
    """What one more token takes to verify beside those that are expected."""
    expected = sum(value.drafting.get(model.which, 0) * float(model.nodes[-1]) for model in value.models)
    each = slopes(value.verify)
    return float(np.interp(expected, np.arange(len(each)), each))
