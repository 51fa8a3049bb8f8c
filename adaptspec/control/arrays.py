"""Sums, tests and choices that are quick: at batch 1 a round is short, and numpy's reductions are not.

Of many rows, counting what is not zero takes a fifth of `any` and `all`.
"""

from __future__ import annotations

import numpy as np

from adaptspec.types import BoolArray, IntArray


def total(values: IntArray) -> int:
    """The sum of a one-dimensional array."""
    return int(values.item() if len(values) == 1 else values.sum())


def some(values: IntArray | BoolArray) -> bool:
    """Whether any value is not zero."""
    return bool(values.item()) if len(values) == 1 else bool(np.count_nonzero(values))


def within(values: IntArray, limits: IntArray) -> bool:
    """Whether no value is above its limit."""
    return bool(values.item() <= limits.item()) if len(values) == 1 else not np.count_nonzero(values > limits)


def number(values: IntArray | BoolArray) -> int:
    """How many values are not zero."""
    return int(values.item() != 0) if len(values) == 1 else int(np.count_nonzero(values))


def alike(values: IntArray, value: int) -> bool:
    """Whether all values are `value`."""
    return bool(values.item() == value) if len(values) == 1 else bool(np.count_nonzero(values == value) == len(values))


def places_of(rows: IntArray, among: IntArray) -> IntArray | None:
    """Where each of `rows` [N] stands in `among`, which holds each row once; None where one of them does not."""
    if rows.tobytes() == among.tobytes():
        return np.arange(len(rows))
    at = {row: place for place, row in enumerate(among.tolist())}
    found = [at.get(row, -1) for row in rows.tolist()]
    return None if -1 in found else np.array(found, dtype=np.int64)
