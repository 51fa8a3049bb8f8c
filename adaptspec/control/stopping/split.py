"""Several stops in one round, each for its own rows: by policy, by task, or by a request's own wish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from adaptspec.control.choosers.chooser import Choice
from adaptspec.control.policy import RoundStop
from adaptspec.control.stopping.stop import StopRule
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


class TaskStops:
    """Stop rules of tasks' own beside that of all others. Which rule a row goes by is looked up when it starts.

    The rules see the positions of the whole batch, as thresholds do not depend on them.
    """

    def __init__(self, rules: Mapping[int, StopRule], rows: int) -> None:
        """`rules` by task number."""
        self._tasks = list(rules)
        self._rules = list(rules.values())
        self._of_row: IntArray = np.full(rows, -1, dtype=np.int64)

    def start(self, row: int, task: int) -> None:
        """A request of this task begins in `row`."""
        self._of_row[row] = self._tasks.index(task) if task in self._tasks else -1

    def begin(self, choice: Choice, otherwise: StopRule, rows: IntArray) -> RoundStop | None:
        """The stop of a round; `otherwise` is the rule of tasks that have none here, unless the choice brings one."""
        owners = self._of_row[rows]
        present = set(owners.tolist())  # quicker than by arrays: rows are some dozens
        stops = {n: self._stop_of(n, choice, otherwise) for n in sorted(present)}
        return stops.popitem()[1] if len(stops) == 1 else _TaskStop(stops, owners)

    def _stop_of(self, number: int, choice: Choice, otherwise: StopRule) -> RoundStop | None:
        if number >= 0:
            return self._rules[number].begin(choice)
        return otherwise.begin(choice) if choice.stop is None else choice.stop


class _TaskStop:
    def __init__(self, stops: Mapping[int, RoundStop | None], owners: IntArray) -> None:
        self._stops, self._owners = stops, owners

    def __call__(self, step: int, index: IntArray, confidence: FloatArray, entropy: FloatArray) -> BoolArray:
        going = np.ones(len(index), dtype=np.bool_)
        owners = self._owners[index]
        for number, stop in self._stops.items():
            mine = np.flatnonzero(owners == number)
            if stop is not None and len(mine):
                going[mine] = stop(step, index[mine], confidence[mine], entropy[mine])
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
