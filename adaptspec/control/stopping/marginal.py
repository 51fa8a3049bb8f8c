"""The ratio rule: draft one more token where it earns more than the round does on average.

Knows the draft's confidence, how often such confidence was right, and what the chooser expects of the round.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from adaptspec.control.arrays import FEW
from adaptspec.control.calibration import Calibration
from adaptspec.control.choosers.chooser import Choice, Outlook
from adaptspec.control.learned import counts
from adaptspec.control.policy import RoundStop
from adaptspec.control.schema import Part
from adaptspec.control.stopping.stop import StopRule
from adaptspec.types import BoolArray, FloatArray, IntArray, RoundRecord

_LOT = 16


class MarginalGoodputStop:
    """Go on while survival x next acceptance > goodput x (one more draft step + one more verified token).

    Survival is the product of the calibrated confidences of the tokens drafted so far; next acceptance is the row's own
    at the next position; goodput and costs are the chooser's. With several rows, those go on that together earn
    the most beyond their cost: a step is paid once for all of them.
    Source: the optimality condition of a ratio of sums (Dinkelbach): a token belongs in the round iff its
    ratio of gain to cost exceeds the whole round's.
    """

    def __init__(self, calibration: Calibration | None = None) -> None:
        """`calibration` is one that somebody else teaches (the chooser); without it the rule keeps its own."""
        self.learns = calibration is None
        self._calibration = Calibration() if calibration is None else calibration
        self._notes: list[RoundRecord] = []
        self._read: FloatArray | None = None
        self._table: list[float] = []  # `_read` as a list
        self._lines: _Lines | None = None
        self._round: _MarginalRound | None = None

    def begin(self, choice: Choice) -> RoundStop | None:
        """None where there is no outlook."""
        outlook = choice.outlook
        if outlook is None:
            return None
        last = self._lines
        if last is None or last.outlook is not outlook:
            self._learn_notes()
            table = self._calibration.table()
            if table is not self._read:
                self._read, self._table = table, table.tolist()
            self._lines = _Lines(outlook, last)
            self._round = _MarginalRound(self._lines, self._table, len(choice.depths))
        elif self._round is not None:
            self._round.begin()
        # The same one while the outlook serves: the decision of a plan that stands is the same then, too.
        return self._round

    def learn(self, record: RoundRecord) -> None:
        """Teach the rule's own calibration, a lot of rounds at a time: it is slow to change."""
        if self.learns and record.drafting:
            self._notes.append(record)
            if len(self._notes) >= _LOT:
                self._learn_notes()

    def learned(self) -> dict[str, FloatArray]:
        """The rule's own calibration, but not rounds in hand; one that the chooser teaches is the chooser's to keep."""
        return {"calibration": self._calibration.learned()} if self.learns else {}

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        self._calibration.restore(counts(learned, "calibration", self._calibration.learned().shape))
        self._lines = None

    def _learn_notes(self) -> None:
        for record in self._notes:
            self._calibration.observe(record.confidence, record.drafted, record.accepted)
        self._notes.clear()


class _Lines:
    """An outlook as plain lists: reading one number of a list costs a tenth of reading it of an array."""

    def __init__(self, outlook: Outlook, last: _Lines | None) -> None:
        self.outlook = outlook
        self._acceptance: dict[int, list[float]] = {}
        # Where only rows came and went, prices are those of before.
        if last is not None and last.outlook.verify is outlook.verify and last.outlook.goodput == outlook.goodput:
            self.price: list[float] = last.price
        else:
            goodput = outlook.goodput
            self.price = [goodput * slope for slope in _slopes(outlook.verify)]
        self.per_step = outlook.goodput * outlook.per_step
        self.per_row = outlook.goodput * outlook.per_row

    @functools.cached_property
    def factors(self) -> list[float]:
        """Those of the rows: not looked at in a round that drafts one token each."""
        factors = self.outlook.factors
        told: list[float] = [1.0] * len(self.outlook.acceptance) if factors is None else factors.tolist()
        return told

    def acceptance(self, row: int) -> list[float]:
        """By position, of the row at this place in the batch; of many rows only some draft."""
        known = self._acceptance.get(row)
        if known is None:
            known = self._acceptance[row] = self.outlook.acceptance[row].tolist()
        return known


def _slopes(curve: FloatArray) -> list[float]:
    """The price of one more token [n]: the least mean price of the next 1, 2 or 4, so that one step up is no wall."""
    if len(curve) <= FEW:
        line: list[float] = curve.tolist()
        return [
            min((line[at + ahead] - line[at]) / ahead for ahead in (1, 2, 4) if at + ahead < len(line))
            for at in range(len(line) - 1)
        ]
    slopes = np.diff(curve)
    for ahead in (2, 4):
        mean = (curve[ahead:] - curve[:-ahead]) / ahead
        slopes[: len(mean)] = np.minimum(slopes[: len(mean)], mean)
    least: list[float] = slopes.tolist()
    return least


_YES: BoolArray = np.ones(1, dtype=np.bool_)
_NO: BoolArray = np.zeros(1, dtype=np.bool_)


class _MarginalRound:
    """The rule in one round after another. Prices are in tokens: seconds x goodput."""

    def __init__(self, lines: _Lines, table: Sequence[float], rows: int) -> None:
        self._lines = lines
        self._table = table
        self._survival = [1.0] * rows
        self._drafted = 0
        self._begun: set[int] = set()

    def begin(self) -> None:
        """Nothing has been drafted yet."""
        self._begun.clear()
        self._drafted = 0

    def __call__(self, step: int, index: IntArray, confidence: FloatArray, entropy: FloatArray) -> BoolArray:  # noqa: ARG002
        if step == 1:
            self._first_step(index.tolist())
        lines, table, bins = self._lines, self._table, len(self._table)
        factors = lines.factors
        gains = []
        for i, sure in zip(index.tolist(), confidence.tolist(), strict=True):
            position = lines.acceptance(i)
            # NaN differs from itself: a drafter without confidences is judged by its record.
            if sure == sure:  # noqa: PLR0124
                here = max(0.01, 1.0 - factors[i] * (1.0 - table[min(int(sure * bins), bins - 1)]))
            else:
                here = position[step - 1]
            self._survival[i] *= here
            gains.append(self._survival[i] * (position[step] if step < len(position) else 0.0))
        self._drafted += len(gains)
        if len(gains) == 1:
            return _YES if gains[0] > lines.per_step + lines.per_row + self._token_price(0) else _NO
        return self._together(gains)

    def _first_step(self, rows: list[int]) -> None:
        """Rows that are verified by different methods draft one after another, in the same round; one that begins

        again begins the next, while a decision stands.
        """
        if not self._begun.isdisjoint(rows):
            self.begin()
        self._begun.update(rows)
        for row in rows:
            self._survival[row] = 1.0

    def _together(self, gains: list[float]) -> BoolArray:
        """The best set of rows to go on with: those of highest gain, as many as earn the most."""
        order = sorted(range(len(gains)), key=gains.__getitem__, reverse=True)
        worth, best, count = -self._lines.per_step, 0.0, 0
        for n, i in enumerate(order):
            worth += gains[i] - self._lines.per_row - self._token_price(n)
            if worth > best:
                best, count = worth, n + 1
        going = np.zeros(len(gains), dtype=np.bool_)
        going[order[:count]] = True
        return going

    def _token_price(self, extra: int) -> float:
        price = self._lines.price
        return price[min(self._drafted + extra, len(price) - 1)] if price else 0.0


class MarginalGoodputStopSpec(Part):
    """Stop where one more token no longer earns what it costs."""

    rule: Literal["marginal-goodput"]

    def build(self, calibration: Calibration | None) -> StopRule:
        """The rule; with a calibration of its own unless somebody teaches one already."""
        return MarginalGoodputStop(calibration)
