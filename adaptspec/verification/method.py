"""What a verification method is, and what all of them need: the layout of a verify pass and runs of agreement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from adaptspec.arrays import BoolArray, IntArray
from adaptspec.models.draft import Draft
from adaptspec.models.sampling import Logits, SamplingBatch
from adaptspec.trees import Tree


@dataclass(frozen=True)
class VerifyResult:
    """Per row: how many drafted tokens stay, and the token after them (correction or bonus)."""

    accepted: IntArray  # [B]
    following: IntArray  # [B]
    path: IntArray | None = None  # [B, D] places of the drafted tokens that stay; None: each row's first ones
    choices: IntArray | None = None  # [N] the target's own token at every packed position, told of drafts that branch

    def places(self, row: int) -> list[int]:
        """Where in the draft of a row the tokens are that stay, in their order."""
        kept = int(self.accepted[row])
        return list(range(kept)) if self.path is None else self.path[row, :kept].tolist()

    def kept(self, draft: Draft, row: int) -> list[int]:
        """The tokens there, and the one that follows."""
        count = int(self.accepted[row])
        kept = draft.tokens[row, :count] if self.path is None else draft.tokens[row, self.path[row, :count]]
        return [*kept.tolist(), int(self.following[row])]


class Method(Protocol):
    """Decides, for a batch, which drafted tokens are kept. One that says nothing else is like `coupled`.

    Only those that ask no more of a token than whether it is the target's take drafts that branch (`takes_trees`).

    Methods are values: two of one kind with the same parameters are equal, and can stand in for each other.
    A method that needs the distribution weighs a drafted token by what that was drawn from: `Draft.distribution` must
    be kept for sampled drafts, and drafters be non-anticipating (`Drafter.propose`).
    """

    name: str  # as written in policies
    lossy: bool = False  # the output may differ from what the target alone would give
    shares_noise: bool = True  # the draft must guess with the target's noise (coupled), else with its own (rejection)
    needs_distribution: bool = False
    takes_trees: bool = False

    def verify(self, logits: Logits, draft: Draft, sampling: SamplingBatch) -> VerifyResult:
        """Judge the draft. `logits` [sum(counts + 1), V], float32: row i brings counts[i] + 1 of them,
        for the positions of its drafted tokens and the one after.
        """


@dataclass(frozen=True)
class Windows:
    """The layout of a verify pass: N = sum(counts + 1) packed positions of B rows, row after row.

    The first of a row is for the token after its newest one, the others for those after each drafted token.
    """

    counts: IntArray  # [B]
    starts: IntArray  # [B] first packed position of each row
    index: IntArray  # [N] row of each position
    offsets: IntArray  # [N] drafted tokens on the way to it
    paths: list[list[int]]  # [N] which ones

    @classmethod
    def of(cls, draft: Draft) -> Windows:
        counts, tree = draft.counts, draft.tree
        paths: list[list[int]] = []
        straight = range(-1, draft.tokens.shape[1] - 1)
        parents = [straight] * len(counts) if tree is None else tree.parents.tolist()
        for tokens, before, count in zip(draft.tokens.tolist(), parents, counts.tolist(), strict=True):
            start = len(paths)
            paths.append([])
            for token, parent in zip(tokens[:count], before, strict=False):
                paths.append([*paths[start + 1 + parent], token])
        index = np.arange(len(counts)).repeat(counts + 1)
        offsets = np.array([len(path) for path in paths], dtype=np.int64)
        return cls(counts, window_starts(counts), index, offsets, paths)

    @property
    def drafted(self) -> IntArray:
        """The packed positions [M] that hold a drafted token, ascending."""
        return np.flatnonzero(self.offsets < self.counts[self.index])


def window_starts(counts: IntArray) -> IntArray:
    """The first packed position of each row, [B]."""
    starts: IntArray = np.cumsum(counts + 1) - counts - 1
    return starts


def accepted_run(good: BoolArray) -> IntArray:
    """Number of leading True in each row of [B, D]: what follows the first rejection is lost."""
    run: IntArray = np.logical_and.accumulate(good, axis=1).sum(axis=1)
    return run


def agreement(draft: Draft, target: IntArray) -> VerifyResult:
    """Keep drafted tokens while they are the target's own, given for all N packed positions.

    Whatever the target has at the next position follows: its correction, or the bonus.
    """
    own, start = target.tolist(), 0
    if draft.tree is not None:
        return _walk(draft, draft.tree, own)
    accepted: list[int] = []
    following: list[int] = []
    for tokens, count in zip(draft.tokens.tolist(), draft.counts.tolist(), strict=True):
        run = 0
        while run < count and tokens[run] == own[start + run]:
            run += 1
        accepted.append(run)
        following.append(own[start + run])
        start += count + 1
    return VerifyResult(np.array(accepted, dtype=np.int64), np.array(following, dtype=np.int64))


def _walk(draft: Draft, tree: Tree, own: list[int]) -> VerifyResult:
    """From the newest token to the child that the target has there, as long as there is one."""
    start, paths, following = 0, [], []
    parents = tree.parents.tolist()
    for tokens, before, count in zip(draft.tokens.tolist(), parents, draft.counts.tolist(), strict=True):
        after = {(before[place], tokens[place]): place for place in range(count - 1, -1, -1)}
        path: list[int] = []
        place = after.get((-1, own[start]))
        while place is not None:
            path.append(place)
            place = after.get((place, own[start + 1 + place]))
        following.append(own[start + 1 + path[-1] if path else start])
        paths.append(path)
        start += count + 1
    accepted = [len(path) for path in paths]
    most = max(accepted, default=0)
    lines = np.array([path + [-1] * (most - len(path)) for path in paths], dtype=np.int64)
    chosen, told = np.array(following, dtype=np.int64), np.array(own, dtype=np.int64)
    return VerifyResult(np.array(accepted, dtype=np.int64), chosen, path=lines, choices=told)
