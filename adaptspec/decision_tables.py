"""Tables a decision hands to drafters: when a row stops drafting, and at what temperature it draws its tokens.

Arrays alone, so that numpy evaluates them here and a kernel may elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan

import numpy as np

from adaptspec.types import BoolArray, FloatArray, IntArray

# Entropy in nats from which a draft counts as unsure: that of an even choice among seven tokens.
UNSURE = 2.0
# What a column holds for a row that has no such bound.
_UNBOUND = {"entropy": np.inf, "calibration": 1.0, "unstated": 1.0, "step": -1.0}  # others: 0


@dataclass(frozen=True, eq=False)
class StopTable:
    """After which drafted token each of B rows stops.

    A row goes on after its token j if that passes column j - 1 of every bound that is there; the last column holds for
    all later tokens, too.

    - `confidence`: least probability that the draft gave the token.
    - `entropy`: most entropy of the distribution it was drawn from, in nats.
    - `survival`: the chance that all tokens so far are accepted must be above this. It is the product of each token's
      `calibration` [B, bins], its chance of acceptance by equal bins of confidence, or of `unstated` [B, D] where the
      draft states no confidence. A draft step is paid once for all rows that take it: what they are above `survival`,
      times `worth`, must add up to more than its price `step`.

    The five arrays of `survival` come together. A bound never stops a draft that does not state the number. The token
    that was looked at is submitted all the same, so every table is exact under every lossless verification.
    """

    confidence: FloatArray | None = None
    entropy: FloatArray | None = None
    survival: FloatArray | None = None
    calibration: FloatArray | None = None
    unstated: FloatArray | None = None
    worth: FloatArray | None = None
    step: FloatArray | None = None

    def begin(self, rows: IntArray) -> Callable[[int, IntArray, FloatArray, FloatArray], BoolArray]:
        """The table at work in one draft of these rows; see `StopEvaluator`."""
        return RowStop(self, int(rows.item())) if len(rows) == 1 else StopEvaluator(self)

    @staticmethod
    def stacked(parts: Sequence[tuple[IntArray, StopTable | None]], rows: int) -> StopTable | None:
        """One table for `rows` rows, of which those at these positions go by these tables; None where nothing stops.

        A part's table has a line for each of its positions, or one for every row.
        """
        known = [(at, table) for at, table in parts if table is not None and len(at)]
        if len(known) == 1 and len(known[0][0]) == rows:
            return known[0][1]
        widths: dict[str, int] = {}
        for name, values in (column for _, table in known for column in table.columns().items()):
            widths[name] = max(widths.get(name, 0), values.shape[1])
        whole: dict[str, FloatArray] = {
            name: np.full((rows, width), _UNBOUND.get(name, 0.0)) for name, width in widths.items()
        }
        for at, table in known:
            for name, values in table.columns().items():
                own = values if len(values) == len(at) else values[at]
                whole[name][at, : own.shape[1]], whole[name][at, own.shape[1] :] = own, own[:, -1:]
        return StopTable(**whole) if known else None

    def take(self, index: IntArray) -> StopTable:
        """The table for other rows [N]: each stops as the row at this position does."""
        return StopTable(**{name: values[index] for name, values in self.columns().items()})

    def columns(self) -> dict[str, FloatArray]:
        """The arrays that are there, by name, in their order."""
        return {name: values for name, values in self.__dict__.items() if values is not None}


class StopEvaluator:
    """A table at work in one draft: asked after each drafted token which rows go on."""

    def __init__(self, table: StopTable) -> None:
        self._table = table
        self._survival = [values for name, values in table.columns().items() if name not in ("confidence", "entropy")]
        self._alive = np.ones(len(self._survival[0])) if self._survival else None

    def __call__(self, step: int, index: IntArray, confidence: FloatArray, entropy: FloatArray) -> BoolArray:
        """Which of the rows at `index` [N] go on after token `step`, which counts from 1 and rises by 1.

        `confidence` and `entropy` [N] are those of the token just drawn; NaN where unknown.
        """
        table = self._table
        going: BoolArray = np.ones(len(index), dtype=np.bool_)
        if table.confidence is not None:
            going &= ~(confidence < _column(table.confidence, step)[index])
        if table.entropy is not None:
            going &= ~(entropy > _column(table.entropy, step)[index])
        if self._alive is not None:
            going &= self._earning(self._alive, step, index, confidence)
        return going

    def _earning(self, alive: FloatArray, step: int, index: IntArray, confidence: FloatArray) -> BoolArray:
        least, calibration, unstated, worth, price = self._survival
        unknown, bins = np.isnan(confidence), calibration.shape[1]
        which = np.minimum(np.where(unknown, 0.0, confidence) * bins, bins - 1).astype(np.int64)
        alive[index] *= np.where(unknown, _column(unstated, step)[index], calibration[index, which])
        above = np.maximum(alive[index] - _column(least, step)[index], 0.0)
        together = float(above @ _column(worth, step)[index])
        return (above > 0.0) & (together > _column(price, step)[index])


class RowStop:
    """`StopEvaluator` for one row, in plain numbers: a tenth of the time, where a draft step is shortest."""

    def __init__(self, table: StopTable, row: int) -> None:
        line: dict[str, list[float]] = {name: values[row].tolist() for name, values in table.columns().items()}
        self._confidence, self._entropy = line.pop("confidence", None), line.pop("entropy", None)
        self._survival = tuple(line.values())
        self._alive = 1.0

    def __call__(self, step: int, index: IntArray, confidence: FloatArray, entropy: FloatArray) -> BoolArray:  # noqa: ARG002
        return np.array([self.goes(step, confidence.item(), entropy.item())])

    def goes(self, step: int, confidence: float, entropy: float) -> bool:
        """Whether the row goes on after token `step`."""
        if not self.within(step, confidence, entropy):
            return False
        if not self._survival:
            return True
        above, worth, price = self.earning(step, self.follow(step, confidence))
        return above > 0.0 and worth > price

    def within(self, step: int, confidence: float, entropy: float) -> bool:
        """Whether a token `step` passes the bounds of its own confidence and entropy."""
        at = step - 1
        floors, ceilings = self._confidence, self._entropy
        if floors is not None and confidence < floors[min(at, len(floors) - 1)]:
            return False
        return ceilings is None or not entropy > ceilings[min(at, len(ceilings) - 1)]

    @property
    def priced(self) -> bool:
        """Whether there are bounds of `survival`."""
        return bool(self._survival)

    def follow(self, step: int, confidence: float) -> float:
        """The chance that all tokens of the row are accepted, token `step` the latest of them."""
        _, calibration, unstated, _, _ = self._survival
        if isnan(confidence):
            self._alive *= unstated[min(step - 1, len(unstated) - 1)]
        else:
            self._alive *= calibration[min(int(confidence * len(calibration)), len(calibration) - 1)]
        return self._alive

    def earning(self, step: int, alive: float, *, main: bool = True) -> tuple[float, float, float]:
        """By how much a chance of acceptance is above `survival`, what that is worth, and the price of the next step.

        Nodes off the main chain have a chance of their own; a price below 0 means that the row has no such bounds.
        """
        least, _, unstated, worth, price = self._survival
        at = step - 1
        below, each = least[min(at, len(least) - 1)], worth[min(at, len(worth) - 1)]
        if main:
            return alive - below, (alive - below) * each, price[min(at, len(price) - 1)]
        net = alive * min(unstated[0], each) - below * each
        return net, net, price[min(at, len(price) - 1)]


def _column(values: FloatArray, step: int) -> FloatArray:
    column: FloatArray = values[:, min(step, values.shape[1]) - 1]
    return column


@dataclass(frozen=True, eq=False)
class TreeTable:
    """Which candidates a drafter submits in addition to its first choice, for each of B rows.

    After a node, the candidate of rank r (0 is the first choice) is submitted if its chance of acceptance is above
    `floor`: the product of the chances along its path, its own being `calibration` [B, ranks, bins] by equal bins of
    confidence (the last rank holds for all later ones). A node has at most `width` [B] children, a row `nodes` [B].
    Where the stop table has bounds of `survival`, nodes off the main chain are drafted on from by the same bounds.
    """

    width: IntArray
    nodes: IntArray
    floor: FloatArray  # [B]
    calibration: FloatArray

    @staticmethod
    def stacked(parts: Sequence[tuple[IntArray, TreeTable | None]], rows: int) -> TreeTable | None:
        """One table for `rows` rows, from those for the rows at these positions; rows of None draft chains."""
        known = [(at, table) for at, table in parts if table is not None]
        if not known:
            return None
        ranks, bins = (max(table.calibration.shape[axis] for _, table in known) for axis in (1, 2))
        ones, floor = np.ones(rows, dtype=np.int64), np.zeros(rows)
        whole = TreeTable(ones, ones * 0, floor, np.ones((rows, ranks, bins)))
        for at, table in known:
            whole.width[at], whole.nodes[at], whole.floor[at] = table.width, table.nodes, table.floor
            own = np.repeat(table.calibration, bins // table.calibration.shape[2], axis=2)
            whole.calibration[at, : own.shape[1]] = own
            whole.calibration[at, own.shape[1] :] = own[:, -1:]
        return whole

    def take(self, index: IntArray) -> TreeTable:
        """The table for other rows [N]: each branches as the row at this position does."""
        return TreeTable(self.width[index], self.nodes[index], self.floor[index], self.calibration[index])

    def within(self, depths: IntArray) -> IntArray:
        """Depths [E >= B], those of the first B rows lowered to what the ceilings on nodes leave to chains."""
        rows = len(self.nodes)
        most = np.where(self.width > 1, self.nodes, depths[:rows])
        return np.append(np.minimum(depths[:rows], most), depths[rows:])


def draft_temperatures(ends: FloatArray, entropy: FloatArray) -> FloatArray:
    """Temperatures [N] of the next drafted tokens, on top of their requests' own: below 1 sharpens, above 1 flattens.

    low + (high - low) * min(entropy / 2, 1), where `ends` [N, 2] are low and high, and `entropy` [N] (nats) is that of
    the distribution that the token would be drawn from at 1. It is known before the token is drawn, so every lossless
    verification stays exact: it gets the distribution that the token was really drawn from.
    """
    low, high = ends.T
    return np.asarray(low + (high - low) * np.minimum(entropy / UNSURE, 1.0))


def stacked_temperatures(parts: Sequence[tuple[IntArray, FloatArray | None]], rows: int) -> FloatArray | None:
    """The ends [rows, 2] of `draft_temperatures` from those of parts of the rows; None: all are drawn as they are."""
    known = [(at, ends) for at, ends in parts if ends is not None]
    if not known:
        return None
    whole: FloatArray = np.ones((rows, 2))
    for at, ends in known:
        whole[at] = ends
    return whole
