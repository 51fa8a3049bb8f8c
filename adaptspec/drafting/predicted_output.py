"""Following an output along a text that its request predicted (OpenAI's predicted outputs).

Where the output is in the predicted text, what follows there is the draft. After a difference it looks for the place
where both meet again: replaced, added and left-out passages cost drafts only while they last. Knows token ids alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaptspec.arrays import IntArray

_LONGEST, _SHORTEST = 4, 3  # tokens in a row that say where one is: two stand in too many places
_NEAR = 8  # so close behind a difference, a single token says it too


class Prediction:
    """One request's predicted text, and how far its output has come in it.

    `read` takes the output in; the place it has come to is behind the latest token that agreed. After a difference it
    is where the last 4 or 3 output tokens stand in the prediction, first further on, then before; else behind the same
    token among the next 8. A predicted token is `accepted` once the output was seen to have it.
    """

    def __init__(self, tokens: Sequence[int], start: int) -> None:
        """The output begins at place `start` of the sequence that `read` gets."""
        self._tokens: IntArray = np.array(tokens, dtype=np.int64)
        self._list = list(tokens)
        self._start = self._read = start
        self._at = 0  # the next token expected
        self._agrees = True
        self._seen = bytearray(len(tokens))

    @property
    def accepted(self) -> int:
        return sum(self._seen)

    @property
    def rejected(self) -> int:
        return len(self._list) - self.accepted

    def read(self, tokens: list[int], upto: int) -> None:
        """Take in the output before place `upto` of prompt + output that came since the last call."""
        for place in range(self._read, upto):
            if self._agrees and self._at < len(self._list) and tokens[place] == self._list[self._at]:
                self._meet(self._at + 1, 1)
            else:
                self._search(tokens[max(self._start, place + 1 - _LONGEST) : place + 1])
        self._read = max(self._read, upto)

    def continuation(self, most: int) -> list[int]:
        """Up to `most` tokens that are predicted next; none while it is not known where the output is."""
        return self._list[self._at : self._at + most] if self._agrees else []

    def _search(self, tail: list[int]) -> None:
        for size in range(len(tail), _SHORTEST - 1, -1):
            ends = self._ends(tail[-size:])
            if len(ends):
                ahead = np.searchsorted(ends, self._at, side="right")
                self._meet(int(ends[ahead] if ahead < len(ends) else ends[-1]), size)
                return
        near = self._list[self._at : self._at + _NEAR]
        self._agrees = tail[-1] in near
        if self._agrees:
            self._meet(self._at + near.index(tail[-1]) + 1, 1)

    def _meet(self, end: int, size: int) -> None:
        self._at, self._agrees = end, True
        self._seen[end - size : end] = b"\1" * size

    def _ends(self, wanted: list[int]) -> IntArray:
        """Places behind the occurrences of `wanted`, ascending."""
        size = len(wanted)
        found = np.ones(max(len(self._tokens) - size + 1, 0), dtype=np.bool_)
        for i, token in enumerate(wanted):
            found &= self._tokens[i : len(self._tokens) - size + 1 + i] == token
        return np.flatnonzero(found) + size
