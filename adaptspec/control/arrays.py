"""Sums and tests that are quick for arrays of one: at batch 1 a round is short, and numpy's reductions are not."""

from __future__ import annotations

import numpy as np

from adaptspec.types import IntArray

# Up to so many entries are looked at one by one: arrays of a dozen numbers take longer, where a round is shortest.
FEW = 16


def total(values: IntArray) -> int:
    """The sum of a one-dimensional array."""
    return int(values.item() if len(values) == 1 else values.sum())


def some(values: IntArray) -> bool:
    """Whether any value is not zero."""
    return bool(values.item()) if len(values) == 1 else bool(values.any())


def number(values: IntArray) -> int:
    """How many values are not zero."""
    return int(values.item() != 0) if len(values) == 1 else int(np.count_nonzero(values))


def alike(values: IntArray, value: int) -> bool:
    """Whether all values are `value`."""
    return bool(values.item() == value) if len(values) == 1 else bool((values == value).all())
