"""Who holds which block of a KV cache. Pure accounting: knows numbers, not tensors.

A block is room for `block_size` consecutive tokens of one row. Blocks are handed out last-freed-first, so that
a lightly used cache touches few pages of memory.
"""

from __future__ import annotations


class BlockAllocator:
    """Hands blocks to rows and takes them back. Free and held blocks always add up to `blocks`."""

    def __init__(self, blocks: int, block_size: int) -> None:
        assert blocks >= 1
        assert block_size >= 1
        self.blocks = blocks
        self.block_size = block_size
        self._free = list(range(blocks - 1, -1, -1))
        self._held: dict[int, list[int]] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks that no row holds."""
        return len(self._free)

    @property
    def free_share(self) -> float:
        """Blocks that no row holds, of all blocks."""
        return len(self._free) / self.blocks

    def held(self, row: int) -> tuple[int, ...]:
        """The blocks of `row`, in the order of its tokens."""
        return tuple(self._held.get(row, ()))

    def capacity(self, row: int) -> int:
        """Tokens that fit the blocks `row` holds."""
        return len(self._held.get(row, ())) * self.block_size

    def reserve(self, row: int, length: int) -> bool:
        """Hold blocks for `length` tokens in all; False, and nothing changes, if too few are free."""
        missing = self._needed(length) - len(self._held.get(row, ()))
        if missing > len(self._free):
            return False
        if missing > 0:
            self._held.setdefault(row, []).extend(self._free.pop() for _ in range(missing))
        return True

    def truncate(self, row: int, length: int) -> None:
        """Give back the blocks that `length` tokens do not need."""
        held = self._held.get(row, [])
        while len(held) > self._needed(length):
            self._free.append(held.pop())
        if not held:
            self._held.pop(row, None)

    def release(self, row: int) -> None:
        """Give back all blocks of `row`; does nothing if it holds none."""
        self.truncate(row, 0)

    def _needed(self, length: int) -> int:
        return -(-length // self.block_size)
