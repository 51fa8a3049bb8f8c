"""A cache whose block table lies on the device, so that passes find a row's blocks by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from adaptspec.models.kv_cache import CachePlan, CacheShape, KVCache
from adaptspec.types import IntArray


class PagedCache(KVCache):
    """`table` int32 [rows + 1, blocks] says where the blocks of each row lie; its last row is nobody's.

    That one has a block of its own: padding is written there. What changes is noted until the device is told, and so is
    what is to be moved: the next pass begins with it, before anything is written where blocks have changed hands.
    """

    def __init__(self, shape: CacheShape, plan: CachePlan, dtype: torch.dtype, device: torch.device) -> None:
        size = plan.block_size
        super().__init__(shape, replace(plan, tokens=plan.tokens + size), dtype, device)
        self.nobody = plan.rows
        self._host: IntArray = np.zeros((plan.rows + 1, -(-plan.context // size)), dtype=np.int32)
        self.table = torch.zeros(self._host.shape, dtype=torch.int32, device=device)
        self._changed: list[int] = []  # entries of the table, counted row by row
        self._moves: list[tuple[int, int]] = []
        self.reserve(self.nobody, 1)
        self._host[self.nobody] = self.held(self.nobody)[0]
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

    def send(self) -> None:
        """Tell the device all that has changed, and move what is to be moved; the host waits for that."""
        if self._changed:
            self.table.copy_(torch.from_numpy(self._host))
            self._changed.clear()
        super().move(self._moves)
        self._moves.clear()

    def changes(self, most: int) -> tuple[list[int], list[int]]:
        """Entries of the table that the device is told of in another way, and what they are now; `most` of them.

        Where more have changed, it is told here, and there are none.
        """
        if len(self._changed) > most:
            self.send()
        entries = list(dict.fromkeys(self._changed))
        self._changed.clear()
        return entries, self._host.ravel()[entries].tolist()
