"""What a drafter hands to verification: the drafted tokens of one round, and how sure it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from adaptspec.arrays import BoolArray, FloatArray, IntArray
from adaptspec.models.noise import Floats
from adaptspec.rounds import DraftWork
from adaptspec.trees import Branches, Tree


@dataclass(frozen=True)
class Draft:
    """Drafted tokens of B rows, padded to the most of any of them (N columns). Without a `tree` each row is a chain.

    `distribution` [B, N, V] is what each token was sampled from, after all processors; it is kept
    only for methods that need it. None means the tokens are point masses (n-gram drafts) or nobody asked.
    Drafts that branch have none. `entropy` is always that of the draft's own distribution.
    """

    tokens: IntArray  # [B, N], 0 beyond counts
    counts: IntArray  # [B] tokens submitted for verification
    confidence: FloatArray  # [B, N] how likely the drafter finds it that the token is kept, NaN where it does not say
    entropy: FloatArray  # [B, N] nats, NaN where none was drafted
    distribution: Floats | None = None
    work: tuple[DraftWork, ...] = ()  # what its drafters ran
    tree: Tree | None = None

    @classmethod
    def empty(cls, rows: int, depth: int = 0) -> Draft:
        """Nothing drafted for any row, with room for `depth` tokens each."""
        shape = rows, depth
        tokens, counts = np.zeros(shape, dtype=np.int64), np.zeros(rows, dtype=np.int64)
        return cls(tokens, counts, np.full(shape, np.nan), np.full(shape, np.nan))

    @classmethod
    def merged(cls, parts: Sequence[Draft]) -> Draft:
        """Parts that draft for different rows as one; point masses where only some parts have a distribution."""
        rows, width = len(parts[0].counts), max(part.tokens.shape[1] for part in parts)
        whole = replace(
            cls.empty(rows, width),
            distribution=_room([part.distribution for part in parts], rows, width),
            work=tuple(work for part in parts for work in part.work),
        )
        for part in parts:
            whole._put(part)
        if all(part.tree is None for part in parts):
            return whole
        tree = Tree.of_chains(whole.counts, width, np.zeros(rows, dtype=np.int64))
        for part in parts:
            if part.tree is not None:
                mine, own = np.flatnonzero(part.counts), part.tokens.shape[1]
                tree.chain[mine] = part.tree.chain[mine]
                for name in ("parents", "ranks", "drafters"):
                    getattr(tree, name)[mine, :own] = getattr(part.tree, name)[mine]
        return replace(whole, tree=tree)

    @property
    def chain(self) -> IntArray:
        """[B] tokens of each row's main chain, which come first."""
        return self.counts if self.tree is None else self.tree.chain

    @property
    def depths(self) -> IntArray:
        """[B] tokens on the longest path of each row."""
        if self.tree is None:
            return self.counts
        lines = zip(self.tree.depths.tolist(), self.counts.tolist(), strict=True)
        return np.array([max(line[:count], default=0) for line, count in lines], dtype=np.int64)

    def branches(self, rows: int, path: IntArray | None) -> Branches | None:
        """What a round's record has of the first rows' trees, of which `path` was accepted."""
        if self.tree is None or path is None:
            return None
        tree = self.tree if rows == len(self.counts) else self.tree.take(np.arange(rows))
        return Branches(tree, self.counts[:rows], self.confidence[:rows], path[:rows])

    def paths(self, row: int) -> list[list[int]]:
        """The places of a row's nodes on the way to each of its leaves; of a chain, one path."""
        count = int(self.counts[row])
        if self.tree is None:
            return [list(range(count))]
        parents = self.tree.parents[row, :count].tolist()
        ways: list[list[int]] = []
        for place, parent in enumerate(parents):
            ways.append([*(ways[parent] if parent >= 0 else []), place])
        return [ways[place] for place in range(count) if place not in parents]

    def _put(self, part: Draft) -> None:
        """Fill in the rows that `part` drafts for."""
        mine, width = np.flatnonzero(part.counts), part.tokens.shape[1]
        self.counts[mine] = part.counts[mine]
        self.tokens[mine, :width] = part.tokens[mine]
        self.confidence[mine, :width] = part.confidence[mine]
        self.entropy[mine, :width] = part.entropy[mine]
        if self.distribution is not None and part.distribution is not None:
            self.distribution[mine, :width] = part.distribution[mine]
        elif self.distribution is not None:
            self.distribution[mine[:, None], np.arange(width), part.tokens[mine]] = 1.0

    def take(self, rows: IntArray) -> Draft:
        distribution = None if self.distribution is None else self.distribution[rows]
        return Draft(
            self.tokens[rows],
            self.counts[rows],
            self.confidence[rows],
            self.entropy[rows],
            distribution,
            tree=None if self.tree is None else self.tree.take(rows),
        )

    def cut(self, counts: IntArray) -> Draft:
        """The first `counts` [B] nodes of each row; `distribution` keeps nodes that are no longer used."""
        inside = np.arange(self.tokens.shape[1]) < counts[:, None]
        tree = self.tree
        return replace(
            self,
            tokens=np.where(inside, self.tokens, 0),
            counts=counts,
            confidence=np.where(inside, self.confidence, np.nan),
            entropy=np.where(inside, self.entropy, np.nan),
            tree=None if tree is None else replace(tree, chain=np.minimum(tree.chain, counts)),
        )

    def straight(self) -> Draft:
        """Each row's main chain alone."""
        return self if self.tree is None else replace(self.cut(self.chain), tree=None)

    def without(self, refused: BoolArray) -> Draft:
        """The draft, less the `refused` nodes [B, N] and all that comes after them. Others keep their order."""
        if self.tree is None:
            inside = np.arange(self.tokens.shape[1]) < self.counts[:, None]
            return self.cut(np.logical_and.accumulate(inside & ~refused, axis=1).sum(axis=1))
        tree, width, at = self.tree, self.tokens.shape[1], np.arange(len(self.counts))
        kept = np.arange(width) < self.counts[:, None]
        for place in range(width):
            parent = tree.parents[:, place]
            kept[:, place] &= ~refused[:, place] & ((parent < 0) | kept[at, parent])
        order = np.argsort(~kept, axis=1, kind="stable")
        moved = np.cumsum(kept, axis=1) - 1  # where each kept node goes
        parents = np.where(tree.parents < 0, -1, np.take_along_axis(moved, np.maximum(tree.parents, 0), axis=1))
        main = kept & (np.arange(width) < tree.chain[:, None])
        whole = replace(
            self,
            tokens=np.take_along_axis(self.tokens, order, axis=1),
            confidence=np.take_along_axis(self.confidence, order, axis=1),
            entropy=np.take_along_axis(self.entropy, order, axis=1),
            tree=Tree(
                np.take_along_axis(parents, order, axis=1),
                main.sum(axis=1),
                np.take_along_axis(tree.ranks, order, axis=1),
                np.take_along_axis(tree.drafters, order, axis=1),
            ),
        )
        return whole.cut(kept.sum(axis=1))


class NodeChoices:
    """What the target chose after each node of one row's draft, -1 where nobody tells."""

    def __init__(self, draft: Draft, row: int, choices: list[int]) -> None:
        """`choices` [counts + 1]: after the newest token and after each node."""
        assert draft.tree is not None
        count = len(choices) - 1
        nodes = zip(draft.tree.parents[row, :count].tolist(), draft.tokens[row, :count].tolist(), strict=True)
        self._places = {node: place for place, node in enumerate(nodes)}
        self._choices = choices

    def after(self, path: Sequence[int]) -> int | None:
        """The token that the target chose after these drafted ones; None: nobody drafted them."""
        place = -1
        for token in path:
            found = self._places.get((place, token))
            if found is None:
                return None
            place = found
        chosen = self._choices[place + 1]
        return None if chosen < 0 else chosen


def _room(kept: Sequence[Floats | None], rows: int, width: int) -> Floats | None:
    """Zeros [rows, width, V], if any part kept something."""
    like = next((part for part in kept if part is not None), None)
    return None if like is None else np.zeros((rows, width, like.shape[-1]), dtype=np.float32)
