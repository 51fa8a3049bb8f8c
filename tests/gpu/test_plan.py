"""Tiles, work items and lists of blocks of a pass, and the bits of trees."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.gpu.attention_plan import (
    SPLIT,
    Workspace,
    num_splits,
    tile_lines,
    tile_tokens,
    tree_bits,
    work_lists,
)
from adaptspec.models.attention import Heads, Span

HEADS = st.builds(lambda kv, group: Heads(kv * group, kv, 64), st.integers(1, 8), st.integers(1, 80))
ROWS = st.lists(st.tuples(st.integers(0, 3 * SPLIT), st.integers(1, 200)), min_size=1, max_size=7)


@given(HEADS, ROWS, st.sampled_from([16, 32, 48, 512]))
def test_every_split_that_a_token_sees_is_in_one_work_item(
    heads: Heads, rows: list[tuple[int, int]], block_size: int
) -> None:
    starts, counts = np.array(rows).T
    # Each row has more blocks than the tokens of this pass need.
    blocks = 1000 * np.arange(len(rows))[:, None] + np.arange(300)
    laid = work_lists(starts, counts, blocks, heads, block_size)
    tiles, lists = laid.tiles.tolist(), laid.lists.tolist()
    owner = np.repeat(np.arange(len(rows)), counts)
    position = np.concatenate([np.arange(start, start + count) for start, count in rows])
    splits = defaultdict[int, list[int]](list)
    for tile, split in zip(*[iter(lists[: 2 * laid.num_items])] * 2, strict=True):
        splits[tile].append(split)
    held = list[int]()
    for tile, (first, size, begin) in enumerate(tiles):
        tokens = range(first, first + size)
        held += tokens
        assert 1 <= size <= tile_tokens(heads)
        assert len({owner[token] for token in tokens}) == 1
        last = position[tokens[-1]]
        assert lists[begin : begin + last // block_size + 1] == blocks[owner[first], : last // block_size + 1].tolist()
        seen = {before // SPLIT for before in range(last)}
        assert sorted(splits[tile]) == sorted(seen | {0})  # split 0 has the tokens' own terms
    assert held == list(range(len(owner)))
    assert set(splits) == set(range(len(tiles)))


@given(HEADS)
def test_a_tile_has_the_lines_of_a_matrix_unit(heads: Heads) -> None:
    lines = tile_lines(heads)
    assert lines >= 16
    assert lines & (lines - 1) == 0
    assert tile_tokens(heads) >= 1


@given(st.data(), st.integers(0, 1000), st.booleans())
def test_bits_of_a_tree_are_what_its_nodes_see(data: st.DataObject, start: int, follows: bool) -> None:
    """A tree of nodes that follow the newest token, or one of which some nodes are cached already."""
    count = data.draw(st.integers(1, 64))
    seen = np.eye(count, dtype=np.bool_)
    for node in range(1, count):
        parent = data.draw(st.integers(-1, node - 1))
        if parent >= 0:
            seen[node] |= seen[parent]
    if follows:
        seen = np.pad(seen, ((1, 0), (1, 0)))
        seen[:, 0] = True
        span = Span(0, start, start + count + 1, seen)
    else:
        size = data.draw(st.integers(1, count))
        span = Span(0, start + count - size, start + count, seen[-size:])
    base, bits = tree_bits(span)
    at = np.arange(span.end)
    beyond = at - base[:, None]
    found = (beyond < 0) | ((beyond < 64) & (bits[:, None] >> np.clip(beyond, 0, 63) & 1 == 1))
    expected = span.visible(0, None)
    expected[np.arange(span.size), np.arange(span.start, span.end)] = False  # a token's own term
    assert np.array_equal(found, expected)
    assert (base >= 0).all()


def test_the_memory_of_a_workspace_is_counted() -> None:
    heads, device = Heads(4, 2, 8), torch.device("cpu")
    workspace = Workspace.of(5, heads, 3 * SPLIT + 1, device)
    parts = workspace.sums, workspace.peaks, workspace.totals
    assert sum(part.nbytes for part in parts) == Workspace.bytes(5, heads, 3 * SPLIT + 1)
    assert workspace.peaks.shape == (5, 4, num_splits(3 * SPLIT + 1) + 1) == (5, 4, 5)
