from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.gpu.device_decoder import TILES, WORKSPACE, shared_tokens
from adaptspec.gpu.plan import SPLIT, Workspace, programs, tile_lines, tile_tokens, tiles
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


@pytest.mark.parametrize(("query", "kv", "tokens"), [(32, 8, 8), (14, 2, 9), (4, 4, 16), (2, 2, 16), (32, 2, 4)])
def test_a_round_of_depth_seven_reads_most_models_keys_once(query: int, kv: int, tokens: int) -> None:
    assert tile_tokens(Heads(query, kv, 64)) == tokens


@given(st.integers(1, 5000), HEADS, st.integers(1, 200_000), st.integers(1, 200))
def test_no_program_is_without_a_split_in_the_longest_row(
    count: int, heads: Heads, places: int, processors: int
) -> None:
    found = programs(count, heads, places, processors)
    assert 1 <= found <= -(-places // SPLIT)
    assert found == 1 or found == -(-places // SPLIT) or found * count * heads.kv >= 2 * processors


@given(HEADS, st.integers(1, 200_000))
def test_a_workspace_takes_what_is_counted_and_no_more_than_it_may(heads: Heads, places: int) -> None:
    tokens = shared_tokens(heads, places)
    one = Workspace.of(tokens, heads, places, torch.device("meta"))
    taken = sum(part.nbytes for part in (one.sums, one.peaks, one.totals))
    assert taken == Workspace.bytes(tokens, heads, places)
    assert taken <= WORKSPACE or tokens == TILES[0]
    assert TILES[0] <= tokens <= TILES[-1]
    assert len(one.peaks) == tokens
