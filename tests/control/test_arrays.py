"""The quick forms for one value say what numpy's reductions say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.arrays import alike, number, some, total, within


@given(values=st.lists(st.integers(-3, 3), min_size=1, max_size=4), value=st.integers(-3, 3))
def test_one_or_many(values: list[int], value: int) -> None:
    array = np.array(values)
    assert total(array) == sum(values)
    assert some(array) == any(values)
    assert alike(array, value) == all(v == value for v in values)
    assert number(array) == sum(v != 0 for v in values)
    assert within(array, np.full(len(values), value)) == all(v <= value for v in values)
