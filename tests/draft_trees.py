"""Draft trees as lists of nodes, row by row: the plain form that tests compare `DraftTree` with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from adaptspec.draft_tree import DraftTree

VOCAB = 4
MAX_CHAIN, MAX_SIDE = 4, 5  # nodes of a row on its main chain and off it


@dataclass(frozen=True)
class Node:
    """One drafted token, with the fields of a `DraftTree`."""

    parent: int
    token: int
    rank: int = 0
    drafter: int = 0
    confidence: float = 0.5
    entropy: float = 1.0
    distribution: tuple[float, ...] = (0.25,) * VOCAB


@dataclass(frozen=True)
class Row:
    """The nodes of one row; the first `chain` of them are its main chain."""

    nodes: tuple[Node, ...] = ()
    chain: int = 0

    def path(self, node: int) -> list[int]:
        """The nodes on the way to a node, itself the last; none for -1."""
        return [] if node < 0 else [*self.path(self.nodes[node].parent), node]

    def tokens(self, node: int) -> list[int]:
        """The tokens of that path."""
        return [self.nodes[number].token for number in self.path(node)]

    def keep(self, mask: Sequence[bool]) -> Row:
        """The nodes in `mask` whose ancestors are all in it."""
        kept = [node for node in range(len(self.nodes)) if all(mask[number] for number in self.path(node))]
        index = {node: i for i, node in enumerate(kept)} | {-1: -1}
        nodes = [replace(self.nodes[node], parent=index[self.nodes[node].parent]) for node in kept]
        return Row(tuple(nodes), sum(node < self.chain for node in kept))


def pack(rows: Sequence[Row], *, distribution: bool = False) -> DraftTree:
    """The rows as a `DraftTree`; `distribution`: with that of each node."""
    nodes = [node for row in rows for node in row.nodes]
    depths = [len(row.path(node)) for row in rows for node in range(len(row.nodes))]

    def column(name: str, kind: type[int] | type[float]) -> Any:
        return np.array([getattr(node, name) for node in nodes], dtype=kind)

    shares = np.array([node.distribution for node in nodes], dtype=np.float32).reshape(-1, VOCAB)
    return DraftTree(
        offsets=np.array([sum(len(row.nodes) for row in rows[:i]) for i in range(len(rows) + 1)]),
        chain=np.array([row.chain for row in rows], dtype=np.int64),
        token=column("token", int),
        parent=column("parent", int),
        depth=np.array(depths, dtype=np.int64),
        rank=column("rank", int),
        drafter=column("drafter", int),
        confidence=column("confidence", float),
        entropy=column("entropy", float),
        distribution=shares if distribution else None,
    )


def assert_equal(tree: DraftTree, expected: DraftTree) -> None:
    """Both trees have the same nodes in the same order."""
    for name, values in vars(expected).items():
        if name not in DraftTree.__dataclass_fields__:
            continue  # cached
        found = getattr(tree, name)
        if values is None:
            assert found is None, name
        else:
            np.testing.assert_array_equal(found, values, name)
            assert found.dtype == values.dtype, name


@st.composite
def draft_rows(draw: st.DrawFn, drafter: int | None = None, *, distinct: bool = False, vocab: int = VOCAB) -> Row:
    """Any tree of one row, often a chain or no node at all. `distinct`: siblings have different tokens."""
    chain = draw(st.integers(0, MAX_CHAIN))
    parents = list(range(-1, chain - 1))
    while len(parents) < chain + MAX_SIDE and draw(st.booleans()):
        parents.append(draw(st.integers(-1, len(parents) - 1)))
    nodes: list[Node] = []
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    for parent in parents:
        siblings = {node.token for node in nodes if node.parent == parent}
        tokens = [token for token in range(vocab) if not (distinct and token in siblings)]
        confidence = float("nan") if random.random() < 0.2 else random.random()
        nodes.append(
            Node(
                parent,
                int(random.choice(tokens)),
                int(random.integers(0, 4)),
                int(random.integers(0, 3)) if drafter is None else drafter,
                confidence,
                random.random(),
                tuple(random.random(VOCAB).astype(np.float32).tolist()),
            )
        )
    return Row(tuple(nodes), chain)


def batches(*, min_rows: int = 1, vocab: int = VOCAB) -> st.SearchStrategy[list[Row]]:
    """Up to four rows with any trees."""
    return st.lists(draft_rows(vocab=vocab), min_size=min_rows, max_size=4)
