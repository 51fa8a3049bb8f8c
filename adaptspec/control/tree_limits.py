"""How far drafts branch: a node is submitted if its chance of being kept is above what verifying it costs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.control.algorithms.algorithm import Choice, ExpectedValue
from adaptspec.decision import TreeTable

_BINS = 100  # of confidence: most side nodes are unlikely, and many cheap ones pay together


@dataclass
class TreeLimits:
    """Writes the tree table of each round.

    A node pays if P(it is kept) > goodput x the seconds that one more verified token takes: the optimality condition of
    a ratio of sums, as for going on (see `MarginalGoodputStop`), at the same price for the whole batch. So trees grow
    where a pass has room, and vanish in large batches. Without an algorithm that knows prices, every node within the
    ceilings is submitted.
    """

    max_width: int
    max_nodes: int
    _value: ExpectedValue | None = field(default=None, init=False)
    _known: FloatArray | None = field(default=None, init=False)  # by that value, see `_calibrations`
    _made: tuple[bytes, TreeTable] | None = field(default=None, init=False)

    def table(self, choice: Choice) -> TreeTable:
        """For the rows of a choice; the same object while nothing changes."""
        if choice.value is not self._value:
            self._value, self._known, self._made = choice.value, None, None
        who = choice.drafter.tobytes()
        if self._made is None or self._made[0] != who:
            self._made = who, self._table(choice.value, choice.drafter)
        return self._made[1]

    def _table(self, value: ExpectedValue | None, drafter: IntArray) -> TreeTable:
        rows = len(drafter)
        width, nodes = np.full(rows, self.max_width), np.full(rows, self.max_nodes)
        if value is None:
            return TreeTable(width, nodes, np.zeros(rows), np.ones((rows, 1, 1)))
        if self._known is None:
            self._known = _calibrations(value, rows)
        lines = np.zeros_like(drafter)
        for line, model in enumerate(value.models, start=1):
            lines[drafter == model.drafter_id] = line
        floor = np.full(rows, value.goodput * _seconds(value, rows))
        return TreeTable(width, nodes, floor, self._known[lines, np.arange(rows)])


def _calibrations(value: ExpectedValue, rows: int) -> FloatArray:
    """P(a node is kept) [1 + models, rows, ranks, bins].

    Of a model's nodes, those of rank 0 (the chain) have the model's calibration, others what they state times
    `ModelTerms.side_chances`. Entry 0 is for drafters without a model: what they state is taken as it is. (With 1 in
    its place, all that they find would be submitted.)
    """
    stated = (np.arange(_BINS) + 0.5) / _BINS
    ranks = 1 + max((len(model.side_chances) for model in value.models), default=0)
    known: FloatArray = np.empty((1 + len(value.models), rows, ranks, _BINS))
    known[:] = stated
    for own, model in zip(known[1:], value.models, strict=True):
        own[:, 0] = np.repeat(model.calibration, _BINS // model.calibration.shape[1], axis=1)
        own[:, 1:] = np.minimum(model.side_chances[:, None] * stated, 1.0)
    return known


def _seconds(value: ExpectedValue, rows: int) -> float:
    """Seconds of verifying one more token: the mean over as many again as are expected.

    Not the slope at one token, as in the stop rule: one floor admits many nodes at once, and where the learned curve is
    flat, a single node would seem to be free.
    """
    expected = sum(value.drafting.get(model.drafter_id, 0) * float(model.nodes[-1]) for model in value.models)
    last = len(value.verify) - 1
    tokens = min(max(expected, rows), last / 2)
    first, second = np.interp((tokens, 2.0 * tokens), np.arange(last + 1), value.verify).tolist()
    return float((second - first) / tokens)
