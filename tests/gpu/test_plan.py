from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.gpu.plan import tile_lines, tile_tokens, tiles
from adaptspec.models.attention import Heads

HEADS = st.builds(lambda kv, group: Heads(kv * group, kv, 64), st.integers(1, 8), st.integers(1, 80))


@given(HEADS, st.lists(st.integers(1, 200), min_size=1, max_size=9))
def test_tiles_hold_every_token_once_and_never_those_of_two_rows(heads: Heads, counts: list[int]) -> None:
    rows = np.arange(len(counts))[::-1].copy()
    owner = np.repeat(rows, counts)
    held = []
    for first, count, row in tiles(rows, np.array(counts), heads).tolist():
        assert 1 <= count <= tile_tokens(heads)
        assert (owner[first : first + count] == row).all()
        held += range(first, first + count)
    assert held == list(range(sum(counts)))


@given(HEADS)
def test_the_lines_of_a_tile_are_what_tensor_cores_take(heads: Heads) -> None:
    lines = tile_lines(heads)
    assert lines >= 16
    assert lines & (lines - 1) == 0
    assert tile_tokens(heads) >= 1
