"""Drafts that branch on the device: beside its chain, of each token's candidates the likely ones that nothing follows.

They cost no step of the draft model. What `drafting.tree_builder` submits without drafting on from side nodes is the
same; beams, where the draft model reads those too, grow on the host alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.decision import TreeTable
from adaptspec.draft_tree import DraftTree
from adaptspec.gpu.draft_bounds import BINS

WIDTH = 4  # candidates of a position that are looked at, the chain's own among them
_BESIDE = WIDTH - 1


class Comb(NamedTuple):
    """The arrays of a `TreeTable` for B rows."""

    width: torch.Tensor  # int64 [B]
    nodes: torch.Tensor  # int64 [B]: as far as there is room
    floor: torch.Tensor  # [B]
    ranks: torch.Tensor  # [B, WIDTH, BINS]

    @classmethod
    def of(cls, plan: Mapping[str, torch.Tensor], rows: int) -> Comb:
        """What `write` wrote, for these rows."""
        return cls(*(plan[name][:rows] for name in cls._fields))

    def chances(self, sure: torch.Tensor, alive: torch.Tensor) -> torch.Tensor:
        """[B, WIDTH]: that a candidate is kept and all before it, of whom the draft is so `sure` [B, WIDTH].

        `alive` [B] is the chance of those before it.
        """
        which = (sure * BINS).long().clamp(0, BINS - 1).unsqueeze(2)
        known = self.ranks.gather(2, which).squeeze(2)
        return torch.where(sure > 0.0, alive.unsqueeze(1) * known, 0.0)

    def likely(self, chances: torch.Tensor) -> torch.Tensor:
        """Of the chances [B, WIDTH - 1] beside a chain's token those to be considered, 0 for others."""
        rank = torch.arange(1, WIDTH, device=chances.device)
        good = (chances > self.floor.unsqueeze(1)) & (rank < self.width.unsqueeze(1))
        return torch.where(good.cumprod(1) > 0, chances, 0.0)

    def best(self, chances: torch.Tensor, counts: torch.Tensor, places: int) -> torch.Tensor:
        """Which candidates [B, places] follow on chains of `counts` [B] tokens, -1 where none does.

        `chances` [B, steps * (WIDTH - 1)] are what is considered after each token; of equals the first is taken.
        """
        order = torch.sort(chances, dim=1, descending=True, stable=True).indices
        which = torch.arange(places, device=counts.device) - counts.unsqueeze(1)
        many = torch.minimum((chances > 0.0).sum(1), self.nodes - counts).unsqueeze(1)
        inside = (which >= 0) & (which < many)
        return torch.where(inside, order.gather(1, which.clamp(0, order.shape[1] - 1)), -1)


class Candidates:
    """Those beside the chains of up to `rows` rows and `steps` steps, all [rows, steps, WIDTH - 1].

    Their `tokens`; how `sure` the draft is of each, given what comes before; the `chances` of those to be considered.
    """

    def __init__(self, rows: int, steps: int, device: torch.device) -> None:
        shape = rows, steps, _BESIDE
        self.tokens = torch.zeros(shape, dtype=torch.int64, device=device)
        self.sure, self.chances = torch.zeros((2, *shape), device=device).unbind(0)
        self.alive = torch.ones(rows, device=device)  # that the chain is kept so far

    def clear(self) -> None:
        self.chances.zero_()
        self.alive.fill_(1.0)

    def beside(
        self, tokens: torch.Tensor, sure: torch.Tensor, comb: Comb, asked: torch.Tensor, step: torch.Tensor
    ) -> None:
        """Take in the `tokens` [B, WIDTH] found at a step [1] by rows, those `asked`, the chain's first."""
        rows = len(asked)
        chances = comb.chances(sure, self.alive[:rows])
        self.alive[:rows] = chances[:, 0]
        likely = torch.where(asked.unsqueeze(1), comb.likely(chances[:, 1:]), 0.0)
        told = tokens[:, 1:].long(), sure[:, 1:], likely
        for mine, values in zip((self.tokens, self.sure, self.chances), told, strict=True):
            mine[:rows].index_copy_(1, step, values.unsqueeze(1))

    def follow(self, comb: Comb, result: Mapping[str, torch.Tensor]) -> None:
        """Let the best follow on the chains in a round's `result` [rows, nodes].

        `nodes` [rows] are how many there are then, `ways` [rows, nodes + 1] how many drafted tokens lead to the newest
        token and to each node, itself among them.
        """
        rows, places = result["picks"].shape
        picks = comb.best(self.chances[:rows].flatten(1), result["counts"], places)
        side, at = picks >= 0, picks.clamp(min=0)
        depths = torch.div(at, _BESIDE, rounding_mode="floor")
        tokens, sure = (part[:rows].flatten(1).gather(1, at) for part in (self.tokens, self.sure))
        told = {"drafted": tokens, "confidence": sure, "entropy": result["entropy"].gather(1, depths)}
        for name, values in told.items():
            result[name].copy_(torch.where(side, values, result[name]))
        result["picks"].copy_(picks)
        result["nodes"].copy_(result["counts"] + side.sum(1))
        straight = torch.arange(1, places + 1, device=picks.device)
        result["ways"][:, 1:] = torch.where(side, depths + 1, straight)


def layout(rows: int) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """What `write` fills, for `staging.Block`."""
    whole, real = torch.int64, torch.float32
    shapes = (whole, (rows,)), (whole, (rows,)), (real, (rows,)), (real, (rows, WIDTH, BINS))
    return dict(zip(Comb._fields, shapes, strict=True))


def write(host: Mapping[str, npt.NDArray[Any]], tree: TreeTable, nodes: IntArray) -> None:
    """Write the table, which is of the first rows; `nodes` [B] of each row, its chain's among them."""
    rows, (_, ranks, bins) = len(tree.width), tree.calibration.shape
    host["nodes"][: len(nodes)], host["nodes"][len(nodes) :] = nodes, 0
    host["width"][:rows], host["floor"][:rows] = tree.width, tree.floor
    known = np.repeat(tree.calibration, BINS // bins, axis=2)
    host["ranks"][:rows, :ranks], host["ranks"][:rows, ranks:] = known[:, :WIDTH], known[:, -1:]


def packed_tree(
    picks: IntArray, chain: IntArray, tokens: IntArray, stated: tuple[FloatArray, FloatArray], drafter: IntArray
) -> DraftTree:
    """The draft of chains of `chain` [B] tokens and the candidates behind them, `picks` (see `Comb.best`).

    `picks`, `tokens` and `stated`, confidence and entropy, are [B, N]; `drafter` is [B].
    """
    side, index = picks >= 0, np.arange(picks.shape[1])
    counts = chain + side.sum(axis=1)
    inside = index < counts[:, None]
    depth, rank = np.divmod(np.maximum(picks, 0), _BESIDE)
    parent = np.where(side, depth - 1, index - 1)[inside]
    return DraftTree(
        np.concatenate(([0], np.cumsum(counts))),
        chain,
        tokens[inside],
        parent,
        parent + 2,  # a candidate has the depth of the chain's node after the same parent
        np.where(side, rank + 1, 0)[inside],
        drafter.repeat(counts),
        *(values[inside] for values in stated),
    )
