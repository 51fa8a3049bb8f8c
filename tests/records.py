"""Records: equality, value for value, and those of a journal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptspec.journal import read_entries
from adaptspec.rounds import RoundRecord


def same(a: Any, b: Any) -> bool:
    """Equal value for value, NaN and shapes and types included; dataclasses by their fields, tuples by their items."""
    if isinstance(a, np.ndarray):
        return a.shape == b.shape and a.dtype == b.dtype and bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    if is_dataclass(a) and not isinstance(a, type):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (bool(a == b) or (isinstance(a, float) and math.isnan(a) and math.isnan(b)))


def read_journal(path: str | Path) -> Iterator[RoundRecord]:
    """The rounds of a journal, oldest first."""
    return (entry for entry in read_entries(path) if isinstance(entry, RoundRecord))
