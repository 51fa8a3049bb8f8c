"""A grammar in a few lines: tokens must climb, each at most 3 above the one before; token 0 ends at any time."""

from __future__ import annotations

import numpy as np

from adaptspec.arrays import BoolArray

VOCAB = 24


def allowed_after(tokens: list[int]) -> BoolArray:
    """What may follow."""
    last = max([*tokens, 0])
    allowed = np.zeros(VOCAB, dtype=np.bool_)
    allowed[last + 1 : last + 4] = True
    allowed[0] = True
    return allowed


class Climb:
    """A matcher for it that notes what it has read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def try_consume_tokens(self, tokens: list[int]) -> int:
        for i, token in enumerate(tokens):
            assert token != 0, "ends are not read"
            if token < 0 or not allowed_after(self.read)[token]:
                return i
            self.read.append(token)
        return len(tokens)

    def rollback(self, num_tokens: int) -> bool:
        assert 0 < num_tokens <= len(self.read)
        del self.read[-num_tokens:]
        return True

    def compute_bitmask(self) -> bytes:
        return np.packbits(allowed_after(self.read), bitorder="little").tobytes() + bytes(4)

    def get_error(self) -> str:
        return ""
