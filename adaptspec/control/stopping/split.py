"""Several stops in one round, each for its own rows: by policy, by task, or by a request's own wish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from adaptspec.control.policy import RoundStop
from adaptspec.types import BoolArray, FloatArray, IntArray


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


class RowThresholds:
    """Confidence thresholds of requests' own in place of the policy's stop: `thresholds` [B], NaN for rows without.

    A row with one drafts on while the draft gives its token at least that probability.
    """

    def __init__(self, stop: RoundStop | None, thresholds: FloatArray) -> None:
        self._stop = stop
        self._thresholds = thresholds
        self._own: BoolArray = ~np.isnan(thresholds)

    def __call__(self, step: int, index: IntArray, confidence: FloatArray, entropy: FloatArray) -> BoolArray:
        """See `RoundStop`."""
        going: BoolArray = ~(confidence < self._thresholds[index])  # NaN on either side: go on
        others = np.flatnonzero(~self._own[index])
        if self._stop is not None and len(others):
            going[others] = self._stop(step, index[others], confidence[others], entropy[others])
        return going
