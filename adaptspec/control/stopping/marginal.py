"""The ratio rule: draft one more token where it earns more than the round does on average.

Knows what the chooser expects of the round, and how often the draft's confidence was right.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from adaptspec.control.choosers.chooser import Choice, Outlook
from adaptspec.control.choosers.planning import ModelTerms
from adaptspec.control.language.schema import Part
from adaptspec.control.stopping.rules import StopRule
from adaptspec.draft_tables import StopTable
from adaptspec.types import FloatArray, IntArray


class MarginalGoodputStop(StopRule):
    """Go on while survival x next acceptance > goodput x (one more draft step + one more verified token).

    Survival is the product of the calibrated confidences of the tokens drafted so far, next acceptance the row's own at
    the next position, both of the row's own drafter; goodput and costs are the chooser's. A step is paid once for all
    rows that take it: they go on if together they earn it. (A share of it in each row's own bound, by how many were
    expected to go on, costs up to 5 %: rows that stop early make it dearer for those beside them.)
    Source: the optimality condition of a ratio of sums (Dinkelbach): a token belongs in the round iff its
    ratio of gain to cost exceeds the whole round's.
    """

    def __init__(self) -> None:
        self._outlook: Outlook | None = None
        self._tables: dict[int, StopTable] = {}
        self._mixed: tuple[IntArray, StopTable | None] | None = None  # tables of several drafters, by who drafts

    def table(self, choice: Choice) -> StopTable | None:
        """See `StopRule.table`; None where there is no outlook."""
        outlook = choice.outlook
        if outlook is None:
            return None
        if outlook is not self._outlook:
            self._outlook, self._mixed = outlook, None
            self._tables = {model.which: _table(outlook, model) for model in outlook.models}
        if len(self._tables) == 1 or choice.drafter is None:
            return self._tables.get(outlook.models[0].which)
        if self._mixed is None or self._mixed[0] is not choice.drafter:
            parts = [(np.flatnonzero(choice.drafter == which), table) for which, table in self._tables.items()]
            self._mixed = choice.drafter, StopTable.stacked(parts, len(choice.depths))
        return self._mixed[1]


def _table(outlook: Outlook, model: ModelTerms) -> StopTable:
    """What the rows of an outlook go by when this model drafts for them."""
    acceptance = model.acceptance
    costs = outlook.goodput * (model.per_row + _verifying(outlook, model))
    least: FloatArray = np.full(acceptance.shape, np.inf)  # none behind the deepest token that is known
    least[:, :-1] = costs[:-1] / acceptance[:, 1:]
    return StopTable(
        survival=least,
        calibration=model.calibration,
        unstated=acceptance,
        worth=np.concatenate((acceptance[:, 1:], acceptance[:, -1:]), axis=1),
        step=np.full((len(acceptance), 1), outlook.goodput * model.per_step),
    )


def _verifying(outlook: Outlook, model: ModelTerms) -> FloatArray:
    """Seconds that verifying a row's token 2 ... D + 1 adds to those that it and the others are expected to submit."""
    others = max(sum(outlook.drafting.values()) - 1, 0)
    drafted = np.append(model.drafted, 0.0)
    tokens = np.arange(1.0, len(drafted)) + others * (np.cumsum(drafted)[:-1] + 0.5 * drafted[1:])
    slopes = _slopes(outlook.verify)
    seconds: FloatArray = np.interp(tokens, np.arange(len(slopes)), slopes)
    return seconds


def _slopes(curve: FloatArray) -> FloatArray:
    """Seconds of one more token [n]: the least mean of the next 1, 2 or 4, so that one step up is no wall."""
    slopes: FloatArray = np.diff(curve)
    for ahead in (2, 4):
        mean = (curve[ahead:] - curve[:-ahead]) / ahead
        slopes[: len(mean)] = np.minimum(slopes[: len(mean)], mean)
    return slopes


class MarginalGoodputStopSpec(Part):
    """Stop where one more token no longer earns what it costs."""

    rule: Literal["marginal-goodput"]

    def build(self) -> StopRule:
        """The rule."""
        return MarginalGoodputStop()
