"""Stop rules: after each drafted token, whether a row drafts one more.

Knows what the draft says of its own tokens and what the chooser expects; it decides no depths. Every rule here
is exact under every lossless verification, because the token it looked at is still submitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from adaptspec.control.choosers.chooser import Choice, Outlook
from adaptspec.control.policy import RoundStop
from adaptspec.control.signals import Calibration
from adaptspec.types import BoolArray, FloatArray, IntArray, RoundRecord


class StopRule(Protocol):
    """Makes the stop of each round, and learns from rounds."""

    def begin(self, choice: Choice) -> RoundStop | None:
        """The stop of a round with this choice; None where all of it is to be drafted."""

    def learn(self, record: RoundRecord) -> None:
        """Take note of a round."""


class NoStop:
    """Draft the whole depth."""

    def begin(self, choice: Choice) -> RoundStop | None:  # noqa: ARG002 - the protocol's signature
        """Nothing stops."""
        return None

    def learn(self, record: RoundRecord) -> None:
        """Nothing to learn."""


class ConfidenceStop:
    """Go on while the draft gave its token at least `threshold` probability. No confidence known: go on."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold

    def begin(self, choice: Choice) -> RoundStop | None:  # noqa: ARG002 - the protocol's signature
        """The same rule every round."""
        return self

    def __call__(self, step: int, index: IntArray, confidence: FloatArray, entropy: FloatArray) -> BoolArray:  # noqa: ARG002
        """See `RoundStop`."""
        return ~(confidence < self._threshold)

    def learn(self, record: RoundRecord) -> None:
        """Nothing to learn."""


class EntropyStop:
    """Go on while the draft's distribution has at most `threshold` nats of entropy. None known: go on."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold

    def begin(self, choice: Choice) -> RoundStop | None:  # noqa: ARG002 - the protocol's signature
        """The same rule every round."""
        return self

    def __call__(self, step: int, index: IntArray, confidence: FloatArray, entropy: FloatArray) -> BoolArray:  # noqa: ARG002
        """See `RoundStop`."""
        return ~(entropy > self._threshold)

    def learn(self, record: RoundRecord) -> None:
        """Nothing to learn."""


class MarginalGoodputStop:
    """Go on while survival x next acceptance > goodput x (one more draft step + one more verified token).

    Survival is the product of the calibrated confidences of the tokens drafted so far; next acceptance is the row's own
    at the next position; goodput and costs are the chooser's. With several rows, those go on that together earn
    the most beyond their cost: a step is paid once for all of them.
    Source: the optimality condition of a ratio of sums (Dinkelbach): a token belongs in the round iff its
    ratio of gain to cost exceeds the whole round's.
    """

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._table: list[float] = []
        self._lines: _Lines | None = None

    def begin(self, choice: Choice) -> RoundStop | None:
        """None where the chooser has no outlook, or the draft says nothing of its confidence."""
        outlook = choice.outlook
        if outlook is None:
            return None
        if self._lines is None or self._lines.outlook is not outlook:
            self._table = self._calibration.table().tolist()
            self._lines = _Lines(outlook)
        return _MarginalRound(self._lines, self._table, len(choice.depths))

    def learn(self, record: RoundRecord) -> None:
        """The calibration belongs to the chooser, which teaches it."""


class _Lines:
    """An outlook as plain lists: reading one number of a list costs a tenth of reading it of an array."""

    def __init__(self, outlook: Outlook) -> None:
        self.outlook = outlook
        self.acceptance: list[list[float]] = outlook.acceptance.tolist()
        self.price: list[float] = (outlook.goodput * _slopes(outlook.verify)).tolist()
        self.per_step = outlook.goodput * outlook.per_step
        self.per_row = outlook.goodput * outlook.per_row


def _slopes(curve: FloatArray) -> FloatArray:
    """The price of one more token [n]: the least mean price of the next 1, 2 or 4, so that one step up is no wall."""
    slopes = np.diff(curve)
    for ahead in (2, 4):
        if len(curve) > ahead:
            mean = (curve[ahead:] - curve[:-ahead]) / ahead
            slopes[: len(mean)] = np.minimum(slopes[: len(mean)], mean)
    return np.asarray(slopes, dtype=np.float64)


_YES: BoolArray = np.ones(1, dtype=np.bool_)
_NO: BoolArray = np.zeros(1, dtype=np.bool_)


class _MarginalRound:
    """The rule in one round. Prices are in tokens: seconds x goodput."""

    def __init__(self, lines: _Lines, table: Sequence[float], rows: int) -> None:
        self._lines = lines
        self._table = table
        self._survival = [1.0] * rows
        self._drafted = 0

    def __call__(self, step: int, index: IntArray, confidence: FloatArray, entropy: FloatArray) -> BoolArray:  # noqa: ARG002
        lines, table, bins = self._lines, self._table, len(self._table)
        gains = []
        for i, sure in zip(index.tolist(), confidence.tolist(), strict=True):
            position = lines.acceptance[i]
            # NaN differs from itself: a drafter without confidences is judged by its record.
            here = table[min(int(sure * bins), bins - 1)] if sure == sure else position[step - 1]  # noqa: PLR0124
            self._survival[i] *= here
            gains.append(self._survival[i] * (position[step] if step < len(position) else 0.0))
        self._drafted += len(gains)
        if len(gains) == 1:
            return _YES if gains[0] > lines.per_step + lines.per_row + self._token_price(0) else _NO
        return self._together(gains)

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


@dataclass(frozen=True)
class StopPart:
    """A stop for some of a batch's rows: `positions` are theirs in the batch, ascending."""

    positions: IntArray
    stop: RoundStop | None


class SplitStop:
    """Several stops in one round, each for its own rows; rows of a part without a stop go on."""

    def __init__(self, parts: Sequence[StopPart], rows: int) -> None:
        self._stops = [part.stop for part in parts]
        self._owner: IntArray = np.full(rows, -1, dtype=np.int64)
        self._place: IntArray = np.zeros(rows, dtype=np.int64)
        for number, part in enumerate(parts):
            self._owner[part.positions] = number
            self._place[part.positions] = np.arange(len(part.positions))

    def __call__(self, step: int, index: IntArray, confidence: FloatArray, entropy: FloatArray) -> BoolArray:
        """See `RoundStop`."""
        going = np.ones(len(index), dtype=np.bool_)
        owners = self._owner[index]
        for number, stop in enumerate(self._stops):
            mine = np.flatnonzero(owners == number)
            if stop is not None and len(mine):
                going[mine] = stop(step, self._place[index[mine]], confidence[mine], entropy[mine])
        return going


def stop_by_task(
    rules: Mapping[int, RoundStop | None], otherwise: RoundStop | None, tasks: IntArray
) -> RoundStop | None:
    """The stop of a batch whose tasks have stops of their own: a rule per task, `otherwise` for the rest.

    The rules here see the positions of the whole batch, as thresholds do not depend on them.
    """
    present = [task for task in rules if (tasks == task).any()]
    if not present:
        return otherwise
    own = np.isin(tasks, present)
    return _TaskStop({task: rules[task] for task in present}, otherwise, tasks, own)


class _TaskStop:
    def __init__(
        self, rules: Mapping[int, RoundStop | None], otherwise: RoundStop | None, tasks: IntArray, own: BoolArray
    ) -> None:
        self._rules, self._otherwise, self._tasks, self._own = rules, otherwise, tasks, own

    def __call__(self, step: int, index: IntArray, confidence: FloatArray, entropy: FloatArray) -> BoolArray:
        going = np.ones(len(index), dtype=np.bool_)
        lanes = [(rule, self._tasks[index] == task) for task, rule in self._rules.items()]
        for rule, which in [*lanes, (self._otherwise, ~self._own[index])]:
            if rule is not None and which.any():
                going[which] = rule(step, index[which], confidence[which], entropy[which])
        return going
