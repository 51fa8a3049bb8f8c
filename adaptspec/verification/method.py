"""What a verification method is, and what all of them need: positions of a verify pass, and walks along agreement."""

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

    `next_token` [B] is the target's correction or bonus. `path` [B, D] has the index of the accepted node at each
    depth, -1 beyond them. `choices` [N + B] are the target's tokens at all packed positions, from methods that know
    them; -1 where unknown.
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
        """The accepted nodes of a row, in their order."""
        nodes: list[int] = self.path[row, : int(self.accepted[row])].tolist()
        return nodes

    def tokens(self, draft: DraftTree, row: int) -> list[int]:
        """The tokens that a row gains: those of its accepted nodes, then the next one."""
        own = draft.token[draft.row_nodes(row)]
        return [*own[self.nodes(row)].tolist(), int(self.next_token[row])]


class Method(Protocol):
    """Decides which drafted tokens are kept. The defaults are those of `coupled`.

    A method that compares a token with the target's and asks nothing else of it accepts trees (`takes_trees`).
    Methods are values: two of one kind with the same parameters are equal, and one can replace the other.
    A method that needs the distribution weighs a drafted token by what it was drawn from: sampled drafts must keep
    `DraftTree.distribution`, and drafters must be non-anticipating (`Drafter.propose`).
    """

    name: str  # as written in policies
    lossy: bool = False  # the output may differ from what the target alone would give
    shares_noise: bool = True  # drafts are drawn with the target's noise (coupled), else with their own (rejection)
    needs_distribution: bool = False
    takes_trees: bool = False

    def verify(self, logits: Logits, draft: DraftTree, sampling: SamplingBatch) -> VerifyResult:
        """Judge the draft of B rows. `logits` [N + B, V], float32, of all packed positions (see `DraftTree`)."""


@dataclass(frozen=True)
class Positions:
    """The N + B packed positions of a verify pass."""

    row: IntArray  # [N + B]
    depth: IntArray  # [N + B] drafted tokens on the way to each, its own included
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
    """The packed position [N] of each node's parent: the logits there are those of the node's token."""
    parents: IntArray = draft.offsets[:-1][draft.row] + draft.row + draft.parent + 1
    return parents


def accepted_run(draft: DraftTree, passed: BoolArray) -> IntArray:
    """The number of nodes [B] of each row's chain before the first that has not `passed` [N]."""
    failed = np.flatnonzero(~passed)
    first = draft.offsets[1:].copy()  # the first failed node of each row, or its end
    np.minimum.at(first, draft.row[failed], failed)
    return np.asarray(first - draft.offsets[:-1])


def walk(draft: DraftTree, choices: IntArray) -> VerifyResult:
    """Follow the target's tokens `choices` [N + B] through each row's tree as far as it has them.

    Of equal siblings the first counts. The target's token after the last one is the next token.
    """
    target, tokens, parents = choices.tolist(), draft.token.tolist(), draft.parent.tolist()
    next_tokens: list[int] = []
    paths: list[list[int]] = []
    start, position = 0, 0
    for end in draft.offsets[1:].tolist():
        children = {
            (parent, token): node
            for node, parent, token in zip(
                range(end - start - 1, -1, -1), parents[start:end][::-1], tokens[start:end][::-1], strict=True
            )
        }
        path: list[int] = []
        node = children.get((-1, target[position]))
        while node is not None:
            path.append(node)
            node = children.get((node, target[position + 1 + node]))
        next_tokens.append(target[position + 1 + path[-1] if path else position])
        paths.append(path)
        position += end - start + 1
        start = end
    accepted = np.array(list(map(len, paths)), dtype=np.int64)
    deepest = int(accepted.max(initial=0))
    lines = np.array([path + [-1] * (deepest - len(path)) for path in paths], dtype=np.int64)
    return VerifyResult(accepted, np.array(next_tokens, dtype=np.int64), lines.reshape(len(paths), deepest), choices)
