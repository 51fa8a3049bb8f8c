"""From one row's nodes to a draft: which of them are submitted for verification, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Protocol

import numpy as np

from adaptspec.models.draft import Draft
from adaptspec.trees import Tree


def best_nodes(main: list[int], chances: Sequence[float], most: int) -> list[int]:
    """The main chain, then the likeliest others of all nodes, `most` of them together; of equals the first.

    A node is no likelier than its parent, and has a higher number, so that none comes before it or stays without it.
    """
    chain = set(main)
    others = [number for number in range(len(chances)) if number not in chain]
    others.sort(key=lambda number: -chances[number])
    return main + others[: max(most - len(main), 0)]


class RowNodes(Protocol):
    """One row's nodes, in the order they were found in: parents first."""

    row: int
    parents: list[int]
    ranks: list[int]
    tokens: list[int]
    confidence: list[float]
    entropy: list[float]
    main: list[int]

    @property
    def drafters(self) -> Sequence[int] | None:
        """Of each; None: nobody says, and of chains they need not be told."""

    def best(self) -> list[int]:
        """What is submitted, the main chain first."""


def submitted(trees: Sequence[RowNodes], rows: int) -> Draft:
    """A draft for `rows` rows of what the trees of some of them submit; chains, where nothing branches."""
    orders = [(own, own.best()) for own in trees]
    width = max((len(order) for _, order in orders), default=0)
    counts, chain, told = [0] * rows, [0] * rows, False
    tokens, ranks, owners = ([[0] * width] * rows for _ in range(3))
    parents = [[-1] * width] * rows
    sure, spread = [[nan] * width] * rows, [[nan] * width] * rows
    for own, order in orders:
        row, missing = own.row, width - len(order)
        counts[row], chain[row] = len(order), len(own.main)
        tokens[row] = [own.tokens[number] for number in order] + [0] * missing
        sure[row] = [own.confidence[number] for number in order] + [nan] * missing
        spread[row] = [own.entropy[number] for number in order] + [nan] * missing
        ranks[row] = [own.ranks[number] for number in order] + [0] * missing
        if own.drafters is not None:
            owners[row] = [own.drafters[number] for number in order] + [0] * missing
            told = True
        places = {number: place for place, number in enumerate(order)} | {-1: -1}
        parents[row] = [places[own.parents[number]] for number in order] + [-1] * missing
    # Three arrays cut in parts: for a few nodes making one costs as much as what stands in it.
    fed, before, among, drafters = np.array([tokens, parents, ranks, owners], dtype=np.int64)
    many, straight = np.array([counts, chain])
    confidence, entropy = np.array([sure, spread])
    tree = Tree(before, straight, among, drafters) if told or counts != chain else None
    return Draft(fed, many, confidence, entropy, tree=tree)
