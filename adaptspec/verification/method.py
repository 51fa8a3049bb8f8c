"""The interface of verification methods, and shared helpers: positions of a verify pass, accepted paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from adaptspec.arrays import BoolArray, IntArray
from adaptspec.draft_tree import DraftTree
from adaptspec.models.sampling import Logits, SamplingBatch


@dataclass(frozen=True)
class VerifyResult:
    """Which drafted nodes of B rows are accepted, and the token after them.

    `next_token` [B] is the target's correction or bonus token. `path` [B, D] has the index of the accepted node at each
    depth, padded with -1. `choices` [N + B] are the target's tokens at all packed positions, -1 where unknown; None if
    the method does not compute them.
    """

    accepted: IntArray  # [B]
    next_token: IntArray  # [B]
    path: IntArray
    choices: IntArray | None = None

    @classmethod
    def of_chains(cls, accepted: IntArray, next_token: IntArray) -> VerifyResult:
        """The first `accepted` [B] nodes of each row."""
        nodes = np.arange(int(accepted.max(initial=0)))
        return cls(accepted, next_token, np.where(nodes < accepted[:, None], nodes, -1))

    def nodes(self, row: int) -> list[int]:
        """The accepted nodes of a row, in text order."""
        nodes: list[int] = self.path[row, : int(self.accepted[row])].tolist()
        return nodes

    def tokens(self, draft: DraftTree, row: int) -> list[int]:
        """The tokens that a row gains: those of its accepted nodes, then the next token."""
        drafted = draft.token[draft.row_nodes(row)]
        return [*drafted[self.nodes(row)].tolist(), int(self.next_token[row])]


class Method(Protocol):
    """Decides which drafted tokens are accepted. By default it is lossless, shares noise, and takes chains only.

    Methods that only compare drafted tokens with the target's tokens accept trees (`takes_trees`). Methods are values:
    two of one class with the same parameters are equal and interchangeable. Methods with `needs_distribution` use the
    distribution that a token was sampled from: drafts must keep `DraftTree.distribution`, and drafters must be
    non-anticipating (see `Drafter.propose`).
    """

    name: str  # as written in policies
    lossy: bool = False  # the output may differ from the target's distribution
    shares_noise: bool = True  # drafts are sampled with the target's noise (coupled), else with their own (rejection)
    needs_distribution: bool = False
    takes_trees: bool = False

    def verify(self, logits: Logits, draft: DraftTree, sampling: SamplingBatch) -> VerifyResult:
        """Verify the draft of B rows by float32 `logits` [N + B, V] of all packed positions (see `DraftTree`)."""


@dataclass(frozen=True)
class Positions:
    """The N + B packed positions of a verify pass."""

    row: IntArray  # [N + B]
    depth: IntArray  # [N + B] number of drafted tokens on the path to each, inclusive
    paths: list[list[int]]  # [N + B] these tokens

    @classmethod
    def of(cls, draft: DraftTree) -> Positions:
        paths = draft.path_tokens()
        row = np.arange(len(draft.chain)).repeat(draft.counts + 1)
        return cls(row, np.array(list(map(len, paths)), dtype=np.int64), paths)


def position_starts(draft: DraftTree) -> IntArray:
    """The packed position [B] of each row's newest token."""
    starts: IntArray = draft.offsets[:-1] + np.arange(len(draft.chain))
    return starts


def node_parents(draft: DraftTree) -> IntArray:
    """The packed position [N] of each node's parent, whose logits predict the node's token."""
    parents: IntArray = position_starts(draft)[draft.row] + draft.parent + 1
    return parents


def accepted_run(draft: DraftTree, passed: BoolArray) -> IntArray:
    """The number of nodes [B] of each row's chain before the first that has not `passed` [N]."""
    failed = np.flatnonzero(~passed)
    first = draft.offsets[1:].copy()  # the first failed node of each row, or its end
    np.minimum.at(first, draft.row[failed], failed)
    return np.asarray(first - draft.offsets[:-1])


def walk(draft: DraftTree, choices: IntArray) -> VerifyResult:
    """Accept the path in each row's tree that matches the target's tokens `choices` [N + B].

    Of equal siblings the first is accepted. The target's token after the last accepted node is the next token.
    """
    target: list[int] = choices.tolist()
    next_tokens: list[int] = []
    paths: list[list[int]] = []
    for row, start in enumerate(position_starts(draft).tolist()):
        children = draft.children(row)
        path: list[int] = []
        token = target[start]
        node = children.get((-1, token))
        while node is not None:
            path.append(node)
            token = target[start + 1 + node]
            node = children.get((node, token))
        next_tokens.append(token)
        paths.append(path)
    accepted = np.array(list(map(len, paths)), dtype=np.int64)
    depth = int(accepted.max(initial=0))
    padded = np.array([path + [-1] * (depth - len(path)) for path in paths], dtype=np.int64)
    return VerifyResult(accepted, np.array(next_tokens, dtype=np.int64), padded.reshape(len(paths), depth), choices)
