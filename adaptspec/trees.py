"""The shape of drafts that branch, and what became of them. Plain data, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from adaptspec.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Tree:
    """The shape of drafts of which some branch: N nodes of each of B rows, parents before their children.

    Nodes follow on the newest token or on another node. A row's main chain is its first nodes, each the parent of the
    next; a row that drafted a chain has no others. Places beyond a row's nodes mean nothing.
    """

    parents: IntArray  # [B, N] place of the node before each; -1: the newest token
    chain: IntArray  # [B] nodes of the main chain, places 0 ... chain - 1
    ranks: IntArray  # [B, N] of each among its drafter's candidates after its parent; 0 is what a chain would have
    drafters: IntArray  # [B, N] index into the engine's drafters

    @classmethod
    def of_chains(cls, counts: IntArray, width: int, drafters: IntArray) -> Tree:
        """Chains of `counts` [B] tokens as trees with room for `width` nodes, drafted by `drafters` [B]."""
        shape = len(counts), width
        parents = np.broadcast_to(np.arange(-1, width - 1), shape).copy()
        owners = np.broadcast_to(drafters[:, None], shape).copy()
        return cls(parents, counts.copy(), np.zeros(shape, dtype=np.int64), owners)

    @cached_property
    def depths(self) -> IntArray:
        """[B, N] of each node: 1 after the newest token."""
        lines: list[list[int]] = [[] for _ in self.parents]
        for line, parents in zip(lines, self.parents.tolist(), strict=True):
            for parent in parents:
                line.append(line[parent] + 1 if 0 <= parent < len(line) else 1)
        return np.array(lines, dtype=np.int64).reshape(self.parents.shape)

    def seen(self, row: int, count: int) -> BoolArray | None:
        """What the newest token and a row's `count` nodes see of each other [count + 1, count + 1]; None: a chain."""
        if count <= self.chain[row]:
            return None
        lines = [b"\1"]
        for place, parent in enumerate(self.parents[row, :count].tolist(), start=1):
            lines.append(lines[parent + 1].ljust(place, b"\0") + b"\1")
        seen = b"".join([line.ljust(count + 1, b"\0") for line in lines])  # a tenth of what arrays would take
        return np.frombuffer(seen, dtype=np.bool_).reshape(count + 1, count + 1)

    def take(self, rows: IntArray) -> Tree:
        return Tree(self.parents[rows], self.chain[rows], self.ranks[rows], self.drafters[rows])


@dataclass(frozen=True)
class Branches:
    """The trees of a round of B rows, and what became of them. A row without branches is a chain of its `tree`."""

    tree: Tree
    nodes: IntArray  # [B] submitted for verification
    confidence: FloatArray  # [B, N] of each node
    path: IntArray  # [B, D] places of the accepted nodes, -1 beyond them

    @property
    def straight(self) -> IntArray:
        """[B] accepted nodes on the main chain: what the chain alone would have had accepted."""
        run = np.logical_and.accumulate(self.path == np.arange(self.path.shape[1]), axis=1).sum(axis=1)
        # What follows on the chain's last node may have the next place, too.
        return np.asarray(np.minimum(run, self.tree.chain))

    def take(self, index: IntArray) -> Branches:
        return Branches(self.tree.take(index), self.nodes[index], self.confidence[index], self.path[index])
