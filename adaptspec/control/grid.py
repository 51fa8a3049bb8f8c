"""Seconds that are never certain: what was measured once is a weak belief, corrected by every look at the truth.

A quantity is known by the logarithm of what it is over what was believed first, and the variance of that. A look is a
sum of quantities: a Kalman filter of diagonal covariance shares out what was not expected, up to what chance allows.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence

import numpy as np

from adaptspec.errors import ConfigError
from adaptspec.types import FloatArray, IntArray

# Variances of logarithms: of a single look, of what was measured at the start, and what a round adds to it. So a
# measurement at the start is worth less than one round, and in the long run about the last thirty looks count.
_NOISE, _FIRST, _DRIFT = 0.3**2, 0.5**2, 1e-4
_SETTLED = math.sqrt(_NOISE * _DRIFT)
# Looks count up to so many standard deviations.
_CHANCE = 2.0
# Twice the work takes at least as long, and hardly more than 2 ** this times as long.
_STEEPEST = 1.25
_FURTHEST = 5.0


class Quantity:
    """One positive number of seconds."""

    __slots__ = ("log", "prior", "seen", "variance")

    def __init__(self, prior: float, variance: float = _FIRST) -> None:
        self.prior = prior
        self.log = 0.0
        self.variance = variance
        self.seen = 0  # when it was last looked at

    @property
    def seconds(self) -> float:
        return self.prior * math.exp(self.log)

    def doubt(self) -> None:
        self.variance = _FIRST


Term = tuple[Quantity, float]  # a quantity, and how many of it there are


def look(parts: Sequence[Term], scale: Quantity, seconds: float, now: int) -> None:
    """Learn from `scale` x the sum of all parts having taken so many seconds, in round `now`."""
    shares = [(part, number * part.seconds) for part, number in parts if number > 0.0]
    expected = sum(share for _, share in shares)
    if not expected > 0.0 or not seconds > 0.0:
        return
    known = [(scale, 1.0, 4.0 * _DRIFT), *((part, share / expected, _DRIFT) for part, share in shares)]
    variance = _NOISE
    for part, share, drift in known:
        part.variance = min(_FIRST, part.variance + drift * (now - part.seen))
        part.seen = now
        variance += share * share * part.variance
    chance = _CHANCE * math.sqrt(variance)
    surprise = math.log(seconds / (expected * scale.seconds))
    surprise = min(chance, max(-chance, surprise)) / variance
    for part, share, _ in known:
        gain = part.variance * share
        part.log = min(_FURTHEST, max(-_FURTHEST, part.log + gain * surprise))
        part.variance -= gain * gain / variance


class LearnedGrid:
    """Seconds over `rows` x `columns`, both ascending; linear between the points and beyond the last.

    What is read never falls along either axis, and rises hardly faster than work; what breaks that is mended where
    least is known: neighbours that rounds have shown hold a wrong point in check.
    """

    def __init__(self, rows: Sequence[float], columns: Sequence[float], seconds: Sequence[Sequence[float]]) -> None:
        """Raises ConfigError if the axes do not ascend, the table has another shape, or a time is not positive."""
        self.rows = [float(x) for x in rows]
        self.columns = [float(x) for x in columns]
        table: FloatArray = np.array(seconds, dtype=np.float64)
        if table.shape != (len(self.rows), len(self.columns)) or not table.size:
            raise ConfigError(
                f"a cost table of {len(self.rows)} x {len(self.columns)} needs as many times; measure again"
            )
        if any(b <= a for axis in (self.rows, self.columns) for a, b in itertools.pairwise(axis)):
            raise ConfigError("the axes of a cost table must ascend; measure again")
        if not (np.isfinite(table).all() and (table > 0).all()):
            raise ConfigError("a cost table holds a time that is not positive; measure again")
        self._axis: FloatArray = np.array(self.columns)
        self._cells = [[Quantity(value) for value in line] for line in table.tolist()]
        self.settle()

    def settle(self, now: int = 0) -> None:
        """What is read from now on follows what was learned."""
        cells = [cell for line in self._cells for cell in line]
        shape = len(self.rows), len(self.columns)
        variance = np.array([min(_FIRST, c.variance + _DRIFT * (now - c.seen)) for c in cells]).reshape(shape)
        level = np.array([math.log(c.prior) + c.log for c in cells]).reshape(shape)
        unsure = np.maximum(np.sqrt(variance) - math.sqrt(_SETTLED), 0.0)
        axes = np.log(np.array(self.rows)), np.log(self._axis)
        read = _mended(level, 1.0 / variance, *axes)
        more = (read - read[:, :1]) * np.exp(-unsure)  # beyond the first column, which everything is weighed against
        self._now: list[list[float]] = read.tolist()
        self._optimistic: list[list[float]] = (read[:, :1] + np.maximum.accumulate(more, axis=1)).tolist()

    def doubt(self) -> None:
        for cell in itertools.chain.from_iterable(self._cells):
            cell.doubt()

    def at(self, row: float, column: float) -> float:
        i, f = _locate(self.rows, row)
        j, g = _locate(self.columns, column)
        now = self._now
        value = now[i][j] if not g else now[i][j] + g * (now[i][j + 1] - now[i][j])
        if f:
            below = now[i + 1][j] if not g else now[i + 1][j] + g * (now[i + 1][j + 1] - now[i + 1][j])
            value += f * (below - value)
        return value

    def across(self, row: float, columns: FloatArray, *, optimistic: bool = False) -> FloatArray:
        """Seconds at one row and columns of any shape; `optimistic`: where little is known, as few as may well be."""
        i, f = _locate(self.rows, row)
        table = self._optimistic if optimistic else self._now
        line = table[i]
        if f:
            line = [above + f * (below - above) for above, below in zip(line, table[i + 1], strict=True)]
        read = np.interp(columns, self._axis, line)
        if len(line) > 1:
            slope = (line[-1] - line[-2]) / (self.columns[-1] - self.columns[-2])
            read = read + slope * np.maximum(columns - self.columns[-1], 0.0)
        return np.asarray(read, dtype=np.float64)

    def parts(self, row: float, column: float, number: float = 1.0) -> list[Term]:
        """What `number` looks at a point are made of."""
        i, f = _locate(self.rows, row)
        j, g = _locate(self.columns, column)
        f, g = min(f, 1.0), min(g, 1.0)
        corners = ((i, j, (1.0 - f) * (1.0 - g)), (i + 1, j, f * (1.0 - g)), (i, j + 1, (1.0 - f) * g))
        parts = [(self._cells[a][b], number * weight) for a, b, weight in corners if weight]
        return [*parts, (self._cells[i + 1][j + 1], number * f * g)] if f and g else parts


def _mended(level: FloatArray, weight: FloatArray, rows: FloatArray, columns: FloatArray) -> FloatArray:
    """Seconds from their logarithms [R, C], rising along both axes, and hardly faster than work."""
    for _ in range(4):
        if _holds(level, columns) and _holds(level.T, rows):
            break
        level = np.array([_monotone(line, own, columns) for line, own in zip(level, weight, strict=True)])
        level = np.array([_monotone(line, own, rows) for line, own in zip(level.T, weight.T, strict=True)]).T
    level = np.maximum.accumulate(np.maximum.accumulate(level, axis=1), axis=0)
    return np.asarray(np.exp(level), dtype=np.float64)


def _holds(level: FloatArray, axis: FloatArray) -> bool:
    step = np.diff(level, axis=1)
    return bool((step >= 0.0).all() and (step <= _STEEPEST * np.diff(axis)).all())


def _monotone(line: FloatArray, weight: FloatArray, axis: FloatArray) -> FloatArray:
    rising = _pooled(line, weight)
    steepest = _STEEPEST * axis
    return steepest - _pooled(steepest - rising, weight)


def _pooled(values: FloatArray, weight: FloatArray) -> FloatArray:
    """The nearest values that never fall, by weighted squares (pool adjacent violators)."""
    if (values[1:] >= values[:-1]).all():
        return values
    pools: list[tuple[float, float, int]] = []
    for value, own in zip(values.tolist(), weight.tolist(), strict=True):
        pool = (value, own, 1)
        while pools and pools[-1][0] > pool[0]:
            mean, heavy, count = pools.pop()
            both = heavy + pool[1]
            pool = ((mean * heavy + pool[0] * pool[1]) / both, both, count + pool[2])
        pools.append(pool)
    counts: IntArray = np.array([count for *_, count in pools])
    return np.repeat(np.array([mean for mean, *_ in pools]), counts)


def _locate(axis: list[float], value: float) -> tuple[int, float]:
    """The cell before `value` and the fraction of the way to the next: above 1 beyond the last point."""
    last = len(axis) - 1
    if value <= axis[0] or last == 0:
        return 0, 0.0
    i = min(bisect.bisect_right(axis, value) - 1, last - 1)
    return i, (value - axis[i]) / (axis[i + 1] - axis[i])
