"""A table of measured seconds over two axes that is read by interpolation and corrected by what is seen later.

Knows numbers only; what the axes mean is its owner's affair.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence

import numpy as np

from adaptspec.errors import ConfigError
from adaptspec.types import FloatArray

# A measurement may move the table by at most this much (in log) times the rate: one hiccup changes nothing.
_CLIP = 0.3
# The median of a cell's first few corrects the profile, which was taken in other conditions, by nearly all it asks for.
_FIRST, _FIRST_SHARE = 3, 0.8
_SLOW, _FAST = 0.02, 0.3
# Corrections stay within a factor of e^2 of the profile.
_FURTHEST = 2.0


class LearnedGrid:
    """Seconds over `rows` x `columns`, both ascending; linear between the points and beyond the last.

    A cell that was not seen for long trusts a new measurement more than one seen each round, so a rare measurement
    still counts. One that was never seen follows the last corrected one of its row; the first column stands for itself.
    """

    def __init__(self, rows: Sequence[float], columns: Sequence[float], seconds: Sequence[Sequence[float]]) -> None:
        """
        Raises:
            ConfigError: the axes do not ascend, the table has another shape, or a time is not positive.
        """
        self.rows = [float(x) for x in rows]
        self.columns = [float(x) for x in columns]
        self.profile: FloatArray = np.array(seconds, dtype=np.float64)
        if self.profile.shape != (len(self.rows), len(self.columns)) or not self.profile.size:
            raise ConfigError(
                f"a cost table of {len(self.rows)} x {len(self.columns)} needs as many times; measure again"
            )
        if any(b <= a for axis in (self.rows, self.columns) for a, b in itertools.pairwise(axis)):
            raise ConfigError("the axes of a cost table must ascend; measure again")
        if not (np.isfinite(self.profile).all() and (self.profile > 0).all()):
            raise ConfigError("a cost table holds a time that is not positive; measure again")
        self._axis: FloatArray = np.array(self.columns)
        self._log: list[list[float]] = [[0.0] * len(self.columns) for _ in self.rows]
        self._seen: list[list[int]] = [[-(10**6)] * len(self.columns) for _ in self.rows]
        self._first: list[list[list[float]]] = [[[] for _ in self.columns] for _ in self.rows]
        self._now: list[list[float]] = self.profile.tolist()
        self._clock = 0

    def at(self, row: float, column: float) -> float:
        """Seconds at one point, corrected."""
        i, f = _locate(self.rows, row)
        j, g = _locate(self.columns, column)
        return self._blend(i, f, j, g)

    def across(self, row: float, columns: FloatArray) -> FloatArray:
        """Seconds at one row coordinate and many column coordinates, corrected; any shape."""
        i, f = _locate(self.rows, row)
        line = self._now[i]
        if f:
            line = [(1.0 - f) * above + f * below for above, below in zip(line, self._now[i + 1], strict=True)]
        read = np.interp(columns, self._axis, line)
        if len(line) > 1:
            slope = max(0.0, (line[-1] - line[-2]) / (self.columns[-1] - self.columns[-2]))
            read = read + slope * np.maximum(columns - self.columns[-1], 0.0)
        return np.asarray(read, dtype=np.float64)

    def along(self, row: float, columns: Sequence[float]) -> list[float]:
        """`across` for ascending columns, one by one: quicker for few."""
        i, f = _locate(self.rows, row)
        line, axis = self._now[i], self.columns
        if f:
            line = [(1.0 - f) * above + f * below for above, below in zip(line, self._now[i + 1], strict=True)]
        j, last, read = 0, len(axis) - 1, []
        for column in columns:
            while j < last and axis[j + 1] <= column:
                j += 1
            seconds = line[j]
            if column > axis[j] and last:
                k = min(j, last - 1)
                slope = (line[k + 1] - line[k]) / (axis[k + 1] - axis[k])
                seconds += (max(0.0, slope) if j == last else slope) * (column - axis[j])
            read.append(seconds)
        return read

    def correct(self, row: float, column: float, seconds: float, scale: float, offset: float = 0.0) -> float:
        """Note that a point took `seconds`, expected to be scale * (`at` + offset).

        Returns seconds / expected, or 1 where the profile is still being corrected and this says nothing of the day.
        """
        self._clock += 1
        i, f = _locate(self.rows, row)
        j, g = _locate(self.columns, column)
        settled = len(self._first[i][j]) == _FIRST
        ratio = seconds / (scale * (self._blend(i, f, j, g) + offset))
        f, g = min(f, 1.0), min(g, 1.0)
        self._nudge(i, j, math.log(ratio), (1.0 - f) * (1.0 - g))
        if f:
            self._nudge(i + 1, j, math.log(ratio), f * (1.0 - g))
        if g:
            self._nudge(i, j + 1, math.log(ratio), (1.0 - f) * g)
        if f and g:
            self._nudge(i + 1, j + 1, math.log(ratio), f * g)
        return ratio if settled else 1.0

    def _nudge(self, i: int, j: int, error: float, weight: float) -> None:
        if weight < 0.05:
            return
        idle = self._clock - self._seen[i][j]
        self._seen[i][j] = self._clock
        first = self._first[i][j]
        log = self._log[i][j]
        if len(first) < _FIRST:
            first.append(log + error)
            if len(first) < _FIRST:
                return
            log += _FIRST_SHARE * (sorted(first)[_FIRST // 2] - log)
        else:
            log += weight * min(_FAST, max(_SLOW, idle / 256.0)) * min(_CLIP, max(-_CLIP, error))
        log = min(_FURTHEST, max(-_FURTHEST, log))
        self._set(i, j, log)
        if j:
            for k in range(1, len(self.columns)):
                if len(self._first[i][k]) < _FIRST:
                    self._set(i, k, log)

    def _set(self, i: int, j: int, log: float) -> None:
        self._log[i][j] = log
        self._now[i][j] = float(self.profile[i, j]) * math.exp(log)

    def _blend(self, i: int, f: float, j: int, g: float) -> float:
        line = self._now[i]
        value = line[j]
        if g:
            value += g * (line[j + 1] - value)
        if f:
            line = self._now[i + 1]
            below = line[j] + g * (line[j + 1] - line[j]) if g else line[j]
            value += f * (below - value)
        return max(value, 1e-9)


def _locate(axis: list[float], value: float) -> tuple[int, float]:
    """The cell before `value` and the fraction of the way to the next: above 1 beyond the last point."""
    last = len(axis) - 1
    if value <= axis[0] or last == 0:
        return 0, 0.0
    i = min(bisect.bisect_right(axis, value) - 1, last - 1)
    return i, (value - axis[i]) / (axis[i + 1] - axis[i])
