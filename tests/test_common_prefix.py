"""The common prefix of two token lists, short ones and long ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adaptspec.common_prefix import common_prefix

ENDS = st.lists(st.integers(0, 1), max_size=4)


@given(shared=st.integers(0, 600), first=ENDS, second=ENDS)
def test_equal_tokens_at_the_beginning_are_counted(shared: int, first: list[int], second: list[int]) -> None:
    same = 0
    while same < min(len(first), len(second)) and first[same] == second[same]:
        same += 1
    text = [token % 7 for token in range(shared)]
    assert common_prefix(text + first, text + second) == shared + same
