"""The drafted tokens of a round, as packed trees. Plain data, no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from adaptspec.arrays import BoolArray, FloatArray, IntArray

Children = Mapping[tuple[int, int], int]
"""Nodes of a row by parent and token."""


@dataclass(frozen=True, eq=False)
class DraftTree:
    """Drafted tokens of B rows: N nodes, row after row. A chain is a tree with one node at each depth.

    The nodes of row b are `offsets[b]:offsets[b + 1]`: its main chain first, each node the parent of the next one, then
    the others. Parents come before their children. In the pass that verifies the draft, each row's newest token comes
    before its nodes, so node n of row b has packed position n + b + 1 of N + B positions.

    `parent` is an index within the row; -1 is the row's newest token. `rank` is the position among the drafter's
    candidates after the parent; nodes of a chain have rank 0, the first choice. `confidence` is the drafter's estimate
    of the probability that the token is accepted. `entropy` is that of the draft's distribution, in nats. Both are NaN
    where unknown. `distribution` is the distribution that each token was sampled from, after all sampling rules; None
    if tokens are point masses or no verification method needs it.
    """

    offsets: IntArray  # [B + 1]
    chain: IntArray  # [B] nodes of the main chain
    token: IntArray  # [N]
    parent: IntArray  # [N]
    depth: IntArray  # [N] 1: after the newest token
    rank: IntArray  # [N]
    drafter: IntArray  # [N] index into the engine's drafters
    confidence: FloatArray  # [N]
    entropy: FloatArray  # [N]
    distribution: Any = None  # float32 [N, V]

    @classmethod
    def empty(cls, rows: int) -> DraftTree:
        """A draft without nodes for `rows` rows."""
        none, unknown = np.zeros(0, dtype=np.int64), np.zeros(0)
        zeros = np.zeros(rows + 1, dtype=np.int64)
        return cls(zeros, zeros[1:], none, none, none, none, none, unknown, unknown)

    @classmethod
    def from_chains(
        cls,
        tokens: IntArray,
        counts: IntArray,
        confidence: FloatArray | None = None,
        entropy: FloatArray | None = None,
        *,
        drafter: IntArray | int = 0,
    ) -> DraftTree:
        """Chains of `counts` [B] tokens; the other arrays are [B, D], `drafter` is one number or [B]."""
        drafted = np.arange(tokens.shape[1]) < counts[:, None]
        index = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)[drafted]
        unknown = np.full(len(index), np.nan)
        drafters = np.broadcast_to(drafter, len(counts)).repeat(counts)
        return cls(
            np.concatenate(([0], np.cumsum(counts))),
            counts,
            tokens[drafted],
            index - 1,
            index + 1,
            np.zeros_like(index),
            drafters,
            unknown if confidence is None else confidence[drafted],
            unknown if entropy is None else entropy[drafted],
        )

    @classmethod
    def merged(cls, parts: Sequence[DraftTree]) -> DraftTree:
        """Merge drafts over the same B rows. Each row has nodes in at most one of them.

        If only some parts have a distribution, the tokens of the others become point masses.
        """
        order = np.argsort(np.concatenate([part.row for part in parts]), kind="stable")
        counts = np.sum([part.counts for part in parts], axis=0)
        columns = {name: np.concatenate([getattr(part, name) for part in parts])[order] for name in _PER_NODE}
        known = next((part.distribution for part in parts if part.distribution is not None), None)
        distribution = None
        if known is not None:
            distribution = np.concatenate([part.point_masses(known.shape[1]) for part in parts])[order]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        return cls(offsets, np.sum([part.chain for part in parts], axis=0), **columns, distribution=distribution)

    @cached_property
    def counts(self) -> IntArray:
        """[B] number of nodes of each row."""
        return np.diff(self.offsets)

    @cached_property
    def row(self) -> IntArray:
        """[N] row of each node."""
        return np.arange(len(self.chain)).repeat(self.counts)

    @cached_property
    def index(self) -> IntArray:
        """[N] index of each node within its row."""
        return np.asarray(np.arange(len(self.token)) - self.offsets[self.row])

    @property
    def branched(self) -> bool:
        """Whether a row has nodes off its main chain."""
        return len(self.token) > int(self.chain.sum())

    @cached_property
    def depths(self) -> IntArray:
        """[B] number of tokens on the longest path of each row."""
        if not self.branched:
            return self.chain
        depths: IntArray = np.zeros_like(self.chain)
        np.maximum.at(depths, self.row, self.depth)
        return depths

    def on_chain(self, values: FloatArray, depth: int | None = None) -> FloatArray:
        """`values` [N] of the main chains as [B, depth], padded with NaN; `depth` None: that of the longest chain."""
        depth = int(self.chain.max(initial=0)) if depth is None else depth
        padded: FloatArray = np.full((len(self.chain), depth), np.nan)
        if not padded.size:
            return padded
        main = self.index < np.minimum(self.chain, depth)[self.row]
        padded[self.row[main], self.index[main]] = values[main]
        return padded

    def row_nodes(self, row: int) -> slice:
        """The nodes of a row."""
        return slice(int(self.offsets[row]), int(self.offsets[row + 1]))

    def path_tokens(self) -> list[list[int]]:
        """[N + B] the drafted tokens on the path to each packed position, inclusive; empty at newest tokens."""
        paths: list[list[int]] = []
        tokens, parents = self.token.tolist(), self.parent.tolist()
        start = 0
        for end in self.offsets[1:].tolist():
            first = len(paths) + 1  # position of node 0
            paths.append([])
            for token, parent in zip(tokens[start:end], parents[start:end], strict=True):
                paths.append([*paths[first + parent], token])
            start = end
        return paths

    def children(self, row: int) -> Children:
        """The nodes of a row by parent and token; of equal siblings the first."""
        nodes = self.row_nodes(row)
        children: dict[tuple[int, int], int] = {}
        for node, key in enumerate(zip(self.parent[nodes].tolist(), self.token[nodes].tolist(), strict=True)):
            children.setdefault(key, node)
        return children

    def leaf_paths(self, row: int) -> list[list[int]]:
        """The path to each leaf of a row, as node indices within the row."""
        parents = self.parent[self.row_nodes(row)].tolist()
        paths: list[list[int]] = []
        for node, parent in enumerate(parents):
            paths.append([*(paths[parent] if parent >= 0 else ()), node])
        return [path for node, path in enumerate(paths) if node not in parents]

    def visible(self, row: int) -> BoolArray | None:
        """Attention mask [n + 1, n + 1] of a row's newest token and its n nodes; None if they are a chain."""
        parents = self.parent[self.row_nodes(row)]
        if len(parents) == self.chain[row]:
            return None
        return path_mask([-1, *(parents + 1).tolist()])

    def take(self, rows: IntArray) -> DraftTree:
        """The drafts of `rows`, in this order."""
        counts = self.counts[rows]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        nodes = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], counts)
        return replace(self._select(nodes), offsets=offsets, chain=self.chain[rows])

    def keep(self, mask: BoolArray) -> DraftTree:
        """The nodes in `mask` [N] whose ancestors are all in it, in the same order."""
        if mask.all():
            return self
        is_kept, start = mask.tolist(), self.offsets[self.row]
        for node, (parent, row_start) in enumerate(zip(self.parent.tolist(), start.tolist(), strict=True)):
            is_kept[node] = is_kept[node] and (parent < 0 or is_kept[row_start + parent])
        kept: BoolArray = np.array(is_kept, dtype=np.bool_)
        before = np.concatenate(([0], np.cumsum(kept)))  # nodes kept before each node
        new_index = before[:-1] - before[self.offsets][self.row]  # within the row
        parent = np.where(self.parent < 0, -1, new_index[start + np.maximum(self.parent, 0)])
        main = kept & (self.index < self.chain[self.row])
        chain = np.bincount(self.row[main], minlength=len(self.chain))
        tree = replace(self, parent=parent)._select(np.flatnonzero(kept))
        return replace(tree, offsets=before[self.offsets], chain=chain)

    def first(self, counts: IntArray) -> DraftTree:
        """The first `counts` [B] nodes of each row."""
        return self.keep(self.index < counts[self.row])

    def main_chains(self) -> DraftTree:
        """The main chain of each row."""
        return self.first(self.chain) if self.branched else self

    def point_masses(self, vocab_size: int) -> Any:
        """`distribution` or, if that is None, point masses at each node's token; float32 [N, vocab_size]."""
        if self.distribution is not None:
            return self.distribution
        masses = np.zeros((len(self.token), vocab_size), dtype=np.float32)
        masses[np.arange(len(masses)), self.token] = 1.0
        return masses

    def _select(self, nodes: IntArray) -> DraftTree:
        """The columns of these nodes. The caller must set `offsets` and `chain`."""
        columns = {name: getattr(self, name)[nodes] for name in _PER_NODE}
        distribution = None if self.distribution is None else self.distribution[nodes]
        return replace(self, **columns, distribution=distribution)


def path_mask(parents: Sequence[int]) -> BoolArray:
    """Attention mask [n, n] of n nodes by the parent of each (-1: none): a node sees its path, itself included."""
    # Building the mask from bytes takes a tenth of the time of arrays.
    masks: list[bytes] = []
    for node, parent in enumerate(parents):
        before = masks[parent] if parent >= 0 else b""
        masks.append(before.ljust(node, b"\0") + b"\1")
    width = len(masks)
    return np.frombuffer(b"".join([mask.ljust(width, b"\0") for mask in masks]), dtype=np.bool_).reshape(width, -1)


def matching_path(children: Children, tokens: Iterable[int]) -> list[int]:
    """The longest path from a row's newest token whose nodes match the first of `tokens`."""
    path: list[int] = []
    node = -1
    for token in tokens:
        child = children.get((node, token))
        if child is None:
            break
        path.append(node := child)
    return path


_PER_NODE = tuple(field.name for field in fields(DraftTree) if field.name not in ("offsets", "chain", "distribution"))
