"""Uniting drafts: each node comes after its parent, whatever is cut, and what the first drafter had stays its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.arrays import IntArray
from adaptspec.decision import TreeTable
from adaptspec.drafting.united_drafts import united
from adaptspec.models.draft import Draft
from adaptspec.trees import Tree

TOKENS = st.lists(st.integers(0, 2), max_size=12)
ONE, TWO = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)


def _chain(tokens: list[int], sure: float) -> Draft:
    draft, count = Draft.empty(1, len(tokens)), len(tokens)
    values = np.array([tokens], dtype=np.int64)
    return replace(draft, tokens=values, counts=np.array([count]), confidence=np.full((1, count), sure))


def _branched(tokens: list[int], side: list[int]) -> Draft:
    """A chain, and a token beside each of its first ones."""
    whole = [*tokens, *(token + 3 for token in side[: len(tokens)])]
    places = [*range(-1, len(tokens) - 1), *range(-1, len(whole) - len(tokens) - 1)]
    parents: IntArray = np.array([places], dtype=np.int64)
    tree = Tree(parents, np.array([len(tokens)]), np.zeros_like(parents), np.zeros_like(parents))
    return replace(_chain(whole, 0.4), tree=tree)


@given(TOKENS, TOKENS, TOKENS, st.tuples(st.integers(0, 30), st.floats(0.0, 0.3)), st.booleans())
def test_nodes_follow_their_parents(
    own: list[int], side: list[int], free: list[int], bounds: tuple[int, float], stated: bool
) -> None:
    """At any ceiling and floor; a lookup that states nothing makes its nodes as likely as their parents."""
    ceiling, floor = bounds
    first = _branched(own, side) if own else Draft.empty(1)
    more = _chain(free, 0.9 if stated else np.nan)
    table = TreeTable(TWO * 9, TWO * ceiling, np.array([floor]), np.full((1, 2, 10), 0.5))
    both = united(first, more, table, (ONE, TWO))
    count = int(both.counts[0])
    assert count <= max(ceiling, int(both.chain[0]), int(first.counts[0]))
    if both.tree is not None:
        parents = both.tree.parents[0, :count]
        assert (parents < np.arange(count)).all()
        assert both.tokens[0, : len(own)].tolist() == (own if own else both.tokens[0, :0].tolist())
        assert both.tree.parents[0, : both.chain[0]].tolist() == list(range(-1, int(both.chain[0]) - 1))
        mine = both.tree.drafters[0, :count] == 0
        assert (both.confidence[0, :count][mine] == 0.4).all()
