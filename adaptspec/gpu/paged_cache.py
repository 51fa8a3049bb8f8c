"""A cache whose block table lies on the device, so that passes find a row's blocks by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from adaptspec.gpu.ranks import ALONE, Group
from adaptspec.models.kv_cache import CachePlan, CacheShape, KVCache
from adaptspec.types import IntArray


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
        super().__init__(shape, replace(plan, tokens=plan.tokens + size), dtype, device)
        self.nobody = plan.rows
        self._host: IntArray = np.zeros((plan.rows + 1, -(-plan.context // size)), dtype=np.int32)
        self.table = torch.zeros(self._host.shape, dtype=torch.int32, device=device)
        self._changed: list[int] = []  # entries of the table, counted row by row
        self._moves: list[tuple[int, int]] = []
        self.group = group
        self.reserve(self.nobody, 1)
        self._host[self.nobody] = self.held(self.nobody)[0]
        self.rubbish = self.held(self.nobody)[0] * size  # where padding is written
        self.send()

    @property
    def free_share(self) -> float:
        return len(self._free) / (self.blocks - 1)

    def reserve(self, row: int, length: int) -> bool:
        before = len(self.held(row))
        if not super().reserve(row, length):
            return False
        for place, block in enumerate(self.held(row)[before:], start=before):
            if self._host[row, place] != block:
                self._host[row, place] = block
                self._changed.append(row * self._host.shape[1] + place)
        return True

    @property
    def unchanging(self) -> tuple[int, int]:
        """An entry that always is what it is."""
        return self.nobody * self._host.shape[1], int(self._host[self.nobody, 0])

    def move(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._moves += pairs

    def moves(self, most: int) -> list[tuple[int, int]]:
        """What is to be `moved` first of all; where that is more than `most`, it is done here, and there is nothing."""
        if len(self._moves) > most:
            self.send()
        pairs, self._moves = self._moves, []
        return pairs

    def moved(self, slots: torch.Tensor) -> None:
        """Have slots[1] [n] hold what slots[0] [n] did before, in all layers."""
        self._pool.index_copy_(1, slots[1], self._pool.index_select(1, slots[0]))

    def begin(self, plan: Mapping[str, torch.Tensor], which: int, *, moving: bool) -> None:
        """Take over what `write` wrote."""
        self.table.view(-1).index_copy_(0, plan["entries"][which], plan["blocks"][which])
        if moving:
            self.moved(plan["moves"][which])

    def write(self, host: Mapping[str, npt.NDArray[Any]], which: int) -> bool:
        """Write what has changed in the table, and what is to be moved, into a plan; whether anything is."""
        entries, blocks = self.changes(host["entries"].shape[1])
        # What is left over tells once more what nobody's first block is.
        host["entries"][which], host["blocks"][which] = self.unchanging
        host["entries"][which, : len(entries)], host["blocks"][which, : len(blocks)] = entries, blocks
        host["moves"][which] = self.rubbish
        pairs = self.moves(host["moves"].shape[2])
        if pairs:
            host["moves"][which, :, : len(pairs)] = np.transpose(pairs)
        return bool(pairs)

    def send(self) -> None:
        """Tell the device all that has changed, and move what is to be moved; the host waits for that."""
        if self._changed:
            with self.group.together("call", "show", self._host):
                self.show(self._host)
            self._changed.clear()
        if self._moves:
            pairs, self._moves = self._moves, []
            with self.group.together("call", "shift", pairs):
                self.shift(pairs)

    def show(self, table: IntArray) -> None:
        """Have this be the device's table."""
        self.table.copy_(torch.from_numpy(table))

    def shift(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Move them now."""
        super().move(pairs)

    def changes(self, most: int) -> tuple[list[int], list[int]]:
        """Entries of the table that the device is told of in another way, and what they are now; `most` of them.

        Where more have changed, it is told here, and there are none.
        """
        if len(self._changed) > most:
            self.send()
        entries = list(dict.fromkeys(self._changed))
        self._changed.clear()
        return entries, self._host.ravel()[entries].tolist()
