"""A cache whose block table lies on the device, so that passes find a row's blocks by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from adaptspec.arrays import IntArray
from adaptspec.gpu.ranks import ALONE, Group
from adaptspec.models.kv_cache import CachePlan, CacheShape, KVCache


class PagedCache(KVCache):
    """`table` int32 [rows + 1, blocks] says where the blocks of each row lie; its last row is nobody's.

    That one has a block of its own: padding is written there. What changes is noted until the device is told, and so is
    what is to be moved: the next pass begins with it, before anything is written where blocks have changed hands.
    """

    def __init__(
        self, shape: CacheShape, plan: CachePlan, dtype: torch.dtype, device: torch.device, group: Group = ALONE
    ) -> None:
        """`group`: the ranks that hold a part of each key and value, in the same slots."""
        size = plan.block_size
        super().__init__(shape, replace(plan, tokens=plan.tokens + size), dtype, device, paged=True)
        self.nobody = plan.rows
        self.table = torch.zeros((plan.rows + 1, -(-plan.context // size)), dtype=torch.int32, device=device)
        self._changed: dict[int, int] = {}  # blocks of entries of the table, counted row by row
        self._moves: list[tuple[int, int]] = []
        self.group = group
        self.reserve(self.nobody, 1)
        (block,) = self.held(self.nobody)
        self.table[self.nobody], self.rubbish = block, block * size  # where padding is written

    @property
    def free_share(self) -> float:
        return len(self._free) / (self.blocks - 1)

    def _hold(self, row: int, block: int) -> None:
        super()._hold(row, block)
        self._changed[row * self.table.shape[1] + len(self._held[row]) - 1] = block

    def move(self, pairs: Sequence[tuple[int, int]]) -> None:
        targets = {target for _, target in self._moves}
        if any(source in targets or target in targets for source, target in pairs):
            self.send()  # moves sent together read the old contents and write in any order
        self._moves += pairs

    def write(self, host: Mapping[str, npt.NDArray[Any]], which: int) -> bool:
        """Write what has changed in the table, and what is to be moved, into a plan; whether anything is.

        What is too much for the plan is sent here.
        """
        entries, moves = host["entries"][which], host["moves"][which]
        if len(self._changed) > entries.shape[1] or len(self._moves) > moves.shape[1]:
            self.send()
        told, pairs = _arrays(self._changed, self._moves)
        # What is left over tells once more what nobody's first block is, and moves what is not read.
        entries[0], entries[1], moves[:] = self.nobody * self.table.shape[1], self.held(self.nobody)[0], self.rubbish
        entries[:, : told.shape[1]], moves[:, : pairs.shape[1]] = told, pairs
        self._changed, self._moves = {}, []
        return bool(pairs.size)

    def begin(self, plan: Mapping[str, torch.Tensor], which: int, *, moving: bool) -> None:
        """Take over what `write` wrote."""
        self._take(plan["entries"][which], plan["moves"][which] if moving else None)

    def send(self) -> None:
        """Tell the device at once, for a pass without a plan; the host waits for that."""
        if self._changed or self._moves:
            pairs, self._moves = self._moves, []
            with self.group.together("call", "show", self._changed, pairs):
                self.show(self._changed, pairs)
            self._changed = {}

    def show(self, changed: Mapping[int, int], pairs: Sequence[tuple[int, int]]) -> None:
        """Have the device's table hold these blocks at these entries, and move these pairs now."""
        told, moves = (torch.from_numpy(one).to(self.table.device) for one in _arrays(changed, pairs))
        self._take(told, moves if pairs else None)

    def _take(self, told: torch.Tensor, moves: torch.Tensor | None) -> None:
        """Entries of the table and their blocks [2, n]; slots that are moved, and where to [2, m], all read first."""
        self.table.view(-1).index_copy_(0, told[0], told[1].int())
        if moves is not None:
            self._pool.index_copy_(1, moves[1], self._pool.index_select(1, moves[0]))


def _arrays(changed: Mapping[int, int], pairs: Sequence[tuple[int, int]]) -> tuple[IntArray, IntArray]:
    told = np.array([[*changed], [*changed.values()]], dtype=np.int64)
    return told, np.array(pairs, dtype=np.int64).reshape(-1, 2).T.copy()
