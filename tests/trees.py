"""Draft trees and rounds whose drafts branch, made by hand and at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from adaptspec.arrays import IntArray
from adaptspec.draft_tree import DraftTree
from adaptspec.rounds import Branches, RoundRecord
from tests.control.helpers import record

MOST_CHAIN, MOST_NODES = 4, 9


def tree_of(
    *rows: Sequence[int], chains: Sequence[int] | None = None, tokens: Sequence[int] | None = None
) -> DraftTree:
    """A draft of rows of nodes with these parents; `chains` None: the main chain is as long as each parent's next node
    follows. Tokens are 0, or the given ones [N].
    """
    counts: IntArray = np.array([len(parents) for parents in rows], dtype=np.int64)
    parent = np.array([one for parents in rows for one in parents], dtype=np.int64)
    straight = [next((i for i, one in enumerate(parents) if one != i - 1), len(parents)) for parents in rows]
    chain = np.array(straight if chains is None else chains, dtype=np.int64)
    depth = np.array([one for parents in rows for one in Grown(parents, 0).depths], dtype=np.int64)
    index = np.concatenate([np.arange(count) for count in counts.tolist()]) if len(counts) else parent
    rank = (index >= chain.repeat(counts)).astype(np.int64)
    token = np.zeros_like(parent) if tokens is None else np.array(tokens, dtype=np.int64)
    unknown = np.full(len(parent), np.nan)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    return DraftTree(offsets, chain, token, parent, depth, rank, np.zeros_like(parent), unknown, unknown)


@dataclass(frozen=True)
class Grown:
    """The tree of one row: its nodes, and the places of those that were accepted."""

    parents: Sequence[int]
    chain: int
    path: Sequence[int] = ()
    ranks: Sequence[int] | None = None  # None: 0 on the main chain, as always, and 1 beside it
    drafters: Sequence[int] | None = None  # None: all of the row's own
    cut: int = 0  # tokens that verification kept and the client did not get

    @property
    def depths(self) -> list[int]:
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths


def branching(*rows: Grown, drafter: Sequence[int] | None = None, number: int = 1) -> RoundRecord:
    """A round of such rows, whose drafters are `drafter`; the confidence of node j is 0.9 - j / 100."""
    size, owners = len(rows), np.array([0] * len(rows) if drafter is None else drafter, dtype=np.int64)
    bare = tree_of(*(one.parents for one in rows), chains=[one.chain for one in rows])
    path = np.full((size, max([len(one.path) for one in rows], default=0)), -1)
    drafters = owners[bare.row]
    for i, one in enumerate(rows):
        nodes = bare.row_nodes(i)
        if one.ranks is not None:
            bare.rank[nodes] = one.ranks
        if one.drafters is not None:
            drafters[nodes] = one.drafters
        path[i, : len(one.path)] = one.path
    confidence = 0.9 - bare.index / 100
    entropy = np.where(bare.index < bare.chain[bare.row], confidence, np.nan)
    tree = replace(bare, token=bare.token - 1, drafter=drafters, confidence=confidence, entropy=entropy)
    plain = record([max([0, *one.depths]) for one in rows], [len(one.path) for one in rows], drafter=owners.tolist())
    return replace(
        plain,
        number=number,
        confidence=tree.on_chain(tree.confidence),
        entropy=tree.on_chain(tree.entropy),
        emitted=plain.emitted - np.array([one.cut for one in rows]),
        work=plain.work._replace(verify_tokens=size + len(tree.token)),
        branches=Branches(tree, path),
    )


@st.composite
def grown(draw: st.DrawFn, drafters: int = 2) -> Grown:
    """Any tree of one row, chains and nothing at all among them, and any path through it."""
    chain = draw(st.integers(0, MOST_CHAIN))
    parents = list(range(-1, chain - 1))
    while len(parents) < MOST_NODES and draw(st.booleans()):
        parents.append(draw(st.integers(-1, len(parents) - 1)))
    path: list[int] = []
    while children := [place for place, parent in enumerate(parents) if parent == (path[-1] if path else -1)]:
        if not draw(st.booleans()):
            break
        path.append(draw(st.sampled_from(children)))
    several = st.lists(st.integers(0, drafters - 1), min_size=len(parents), max_size=len(parents))
    beside = len(parents) - chain
    ranks = [0] * chain + draw(st.lists(st.integers(0, 5), min_size=beside, max_size=beside))
    return Grown(parents, chain, path, ranks, draw(several), draw(st.integers(0, len(path))))


@st.composite
def forests(draw: st.DrawFn, drafters: int = 2, most: int = 4) -> RoundRecord:
    """A round of one to `most` rows with any trees."""
    rows = draw(st.lists(grown(drafters), min_size=1, max_size=most))
    owners = draw(st.lists(st.integers(0, drafters - 1), min_size=len(rows), max_size=len(rows)))
    return branching(*rows, drafter=owners)


# The main chain's first token was wrong, and its sibling right: [a chain of 3, a sibling of 1 with a child].
SIBLING = Grown([-1, 0, 1, -1, 3], 3, [3, 4])
STRAIGHT = Grown([-1, 0, 1, -1, 0], 3, [0, 1])
CHAIN = Grown([-1, 0], 2, [0])
