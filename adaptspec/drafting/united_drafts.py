"""Uniting the drafts of two drafters for the same rows: each token once after each other, whoever proposed it.

Under coupled verification any nodes will do, so that what a free drafter knows stands beside what a model drafts.
"""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from typing import NamedTuple

import numpy as np

from adaptspec.arrays import IntArray
from adaptspec.decision import TreeTable
from adaptspec.drafting.submitted_nodes import best_nodes, submitted
from adaptspec.models.draft import Draft


def united(first: Draft, free: Draft, table: TreeTable, owners: tuple[IntArray, IntArray]) -> Draft:
    """The nodes of `first`, and those of `free` that are likely enough beside them; both draft for the same B rows.

    `owners` [B] each: who drafted them. The main chain is that of the first, or of the other where it drafted nothing.
    A node of both is the first one's, and states what that does. A node of `free` is left out if its chance is not
    above the floor of the `table`: it counts only where the first drafter's own are wrong. Beyond the ceiling on nodes
    the least likely go.
    """
    drafting = np.flatnonzero(first.counts + free.counts).tolist()
    rows = [_Row(first, free, table, row, owners) for row in drafting]
    if all(len(own.tokens) == first.counts[own.row] for own in rows):
        return replace(first, work=(*first.work, *free.work))
    whole = submitted(rows, len(first.counts))
    return replace(
        first,
        tokens=whole.tokens,
        confidence=whole.confidence,
        entropy=whole.entropy,
        counts=whole.counts,
        work=(*first.work, *free.work),
        tree=whole.tree,
    )


class _Row:
    """One row's nodes: those of the first drafter, then what the other adds."""

    def __init__(
        self, first: Draft, free: Draft, table: TreeTable, row: int, owners: tuple[IntArray, IntArray]
    ) -> None:
        self.row = row
        self._table = table
        self.parents: list[int] = []
        self.tokens: list[int] = []
        self.confidence: list[float] = []
        self.entropy: list[float] = []
        self.ranks: list[int] = []
        self.drafters: list[int] = []
        self._chance: list[float] = []  # that all tokens up to it are kept
        self._numbers: dict[tuple[int, int], int] = {}
        self._right = [0.0]  # that a child of the first drafter is kept; of the newest token, then of each node
        for node in _nodes(first, row):
            self._add_first(node, int(owners[0][row]))
        alone = not self.tokens
        self.main = list(range(int(first.chain[row])))
        numbers = [-1]
        for node in _nodes(free, row):
            parent = numbers[node.parent + 1]
            numbers.append(-2 if parent == -2 else self._add_free(parent, node, int(owners[1][row]), alone=alone))
        if alone:
            self.main = list(range(int(free.chain[row])))

    def best(self) -> list[int]:
        """What is submitted."""
        return best_nodes(self.main, self._chance, int(self._table.nodes[self.row]))

    def _add_first(self, node: _Node, owner: int) -> None:
        chance = 1.0
        if not isnan(node.sure):
            _, ranks, bins = self._table.calibration.shape
            at = min(node.rank, ranks - 1), min(int(node.sure * bins), bins - 1)
            chance = self._table.calibration.item(self.row, *at)
        self._right[node.parent + 1] += chance
        self._add(node.parent, node, owner, self._before(node.parent) * chance)

    def _add_free(self, parent: int, node: _Node, owner: int, *, alone: bool) -> int:
        """The number of the node, which may be the first drafter's own; -2 if it is left out."""
        known = self._numbers.get((parent, node.token))
        stated = self._before(parent) * (1.0 if isnan(node.sure) else node.sure)
        if known is not None:
            self._chance[known] = max(self._chance[known], stated)
            return known
        chance = stated * max(1.0 - self._right[parent + 1], 0.0)
        if not (alone or chance > self._table.floor[self.row]):
            return -2
        return self._add(parent, node, owner, chance)

    def _add(self, parent: int, node: _Node, owner: int, chance: float) -> int:
        number = self._numbers[parent, node.token] = len(self.tokens)
        self.parents.append(parent)
        self.tokens.append(node.token)
        self.confidence.append(node.sure)
        self.entropy.append(node.spread)
        self.ranks.append(node.rank)
        self.drafters.append(owner)
        self._chance.append(chance)
        self._right.append(0.0)
        return number

    def _before(self, parent: int) -> float:
        return 1.0 if parent < 0 else self._chance[parent]


class _Node(NamedTuple):
    """One node of a draft: where its parent stands, token, confidence, entropy, rank."""

    parent: int
    token: int
    sure: float
    spread: float
    rank: int


def _nodes(draft: Draft, row: int) -> list[_Node]:
    count, tree = int(draft.counts[row]), draft.tree
    parents = list(range(-1, count - 1)) if tree is None else tree.parents[row, :count].tolist()
    ranks = [0] * count if tree is None else tree.ranks[row, :count].tolist()
    told = (part[row, :count].tolist() for part in (draft.tokens, draft.confidence, draft.entropy))
    return [_Node(*values) for values in zip(parents, *told, ranks, strict=True)]
