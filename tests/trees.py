"""Rounds whose drafts branch, made by hand and at random: for everything that reads records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from adaptspec.rounds import RoundRecord
from adaptspec.trees import Branches, Tree
from tests.control.helpers import record

MOST_CHAIN, MOST_NODES = 4, 9


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
    chains, nodes = ([one.chain for one in rows], np.array([len(one.parents) for one in rows], dtype=np.int64))
    width, deepest = int(nodes.max(initial=0)), max([len(one.path) for one in rows], default=0)
    tree = Tree.of_chains(np.array(chains, dtype=np.int64), width, owners)
    sure, path = np.full((size, width), np.nan), np.full((size, deepest), -1)
    for i, one in enumerate(rows):
        own = slice(0, len(one.parents))
        tree.parents[i, own] = one.parents
        tree.ranks[i, own] = [int(j >= one.chain) for j in range(len(one.parents))] if one.ranks is None else one.ranks
        tree.drafters[i, own] = owners[i] if one.drafters is None else one.drafters
        sure[i, own] = 0.9 - np.arange(len(one.parents)) / 100
        path[i, : len(one.path)] = one.path
    plain = record([max([0, *one.depths]) for one in rows], [len(one.path) for one in rows], drafter=owners.tolist())
    most = max(chains, default=0)
    main = np.where(np.arange(most) < np.array(chains)[:, None], sure[:, :most], np.nan)
    return replace(
        plain,
        number=number,
        confidence=main,
        entropy=main,
        emitted=plain.emitted - np.array([one.cut for one in rows]),
        work=plain.work._replace(verify_tokens=size + int(nodes.sum())),
        branches=Branches(tree, nodes, sure, path),
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
