"""A cache whose block table lies on the device, so that passes find a row's blocks by themselves."""

from __future__ import annotations

from dataclasses import replace

import torch

from adaptspec.models.kv_cache import CachePlan, CacheShape, KVCache
from adaptspec.types import IntArray


class PagedCache(KVCache):
    """`table` int32 [rows + 1, blocks] says where the blocks of each row lie; its last row is nobody's.

    That one has a block of its own: padding is written there. The host notes what changes; `send` tells the device.
    """

    def __init__(self, shape: CacheShape, plan: CachePlan, dtype: torch.dtype, device: torch.device) -> None:
        size = plan.block_size
        super().__init__(shape, replace(plan, tokens=plan.tokens + size), dtype, device)
        self.nobody = plan.rows
        table = plan.rows + 1, -(-plan.context // size)
        self._pinned = torch.zeros(table, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._host: IntArray = self._pinned.numpy()
        self.table = torch.zeros(table, dtype=torch.int32, device=device)
        self._changed = True
        self.reserve(self.nobody, 1)
        self._host[self.nobody] = self.held(self.nobody)[0]

    @property
    def free_share(self) -> float:
        return len(self._free) / (self.blocks - 1)

    def reserve(self, row: int, length: int) -> bool:
        before = len(self.held(row))
        if not super().reserve(row, length):
            return False
        added = self.held(row)[before:]
        if added:
            self._host[row, before : before + len(added)] = added
            self._changed = True
        return True

    def send(self) -> None:
        """Tell the device what has changed, before a pass that needs it. The host may go on when that has run."""
        if self._changed:
            self.table.copy_(self._pinned, non_blocking=True)
            self._changed = False
