"""A predicted output (OpenAI's `prediction`), aligned with the output of its request.

While the output follows the prediction, the rest of the prediction is the draft. After a difference the output is
aligned again, so replaced, inserted and deleted passages cost drafts only while they last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaptspec.arrays import IntArray

_MAX_MATCH, _MIN_MATCH = 4, 3  # matching tokens that align the output; two occur too often
_NEAR = 8  # among this many tokens after a difference, a single matching token also aligns the output


class Prediction:
    """One request's predicted text. The request owns it, and its lookup drafters draft from it.

    `read` aligns the output. The position in the prediction is the one after the latest matching token. After a
    difference it is after an occurrence of the last 4 or 3 output tokens in the prediction: the next one, else the last
    one before; without any, after the same token among the next 8. A predicted token counts as accepted once it was
    aligned with an output token.
    """

    def __init__(self, tokens: Sequence[int], start: int) -> None:
        """`start`: the prompt's length, at which the output begins in the tokens passed to `read`."""
        self._array: IntArray = np.array(tokens, dtype=np.int64)
        self._tokens = list(tokens)
        self._start = self._read = start
        self._next = 0  # the position in the prediction
        self._aligned = True
        self._matched = bytearray(len(tokens))

    @property
    def accepted(self) -> int:
        return sum(self._matched)

    @property
    def rejected(self) -> int:
        return len(self._tokens) - self.accepted

    def read(self, tokens: list[int], end: int) -> None:
        """Align prompt + output up to `end`. Only the tokens since the last call are read.

        An output that became shorter (a stop string has cut it) is read again from its start.
        """
        if end < self._read:
            self._read, self._next, self._aligned = self._start, 0, True
            self._matched = bytearray(len(self._tokens))
        for position in range(self._read, end):
            if self._aligned and self._next < len(self._tokens) and tokens[position] == self._tokens[self._next]:
                self._match(self._next + 1, 1)
            else:
                self._search(tokens[max(self._start, position + 1 - _MAX_MATCH) : position + 1])
        self._read = max(self._read, end)

    def continuation(self, max_tokens: int) -> list[int]:
        """The next predicted tokens, at most `max_tokens`; none while the output is not aligned."""
        return self._tokens[self._next : self._next + max_tokens] if self._aligned else []

    def _search(self, tail: list[int]) -> None:
        for size in range(len(tail), _MIN_MATCH - 1, -1):
            ends = self._ends_of(tail[-size:])
            if len(ends):
                ahead = np.searchsorted(ends, self._next, side="right")
                self._match(int(ends[ahead] if ahead < len(ends) else ends[-1]), size)
                return
        near = self._tokens[self._next : self._next + _NEAR]
        self._aligned = tail[-1] in near
        if self._aligned:
            self._match(self._next + near.index(tail[-1]) + 1, 1)

    def _match(self, end: int, size: int) -> None:
        self._next, self._aligned = end, True
        self._matched[end - size : end] = b"\1" * size

    def _ends_of(self, wanted: list[int]) -> IntArray:
        """The positions after the occurrences of `wanted`, ascending."""
        size = len(wanted)
        found = np.ones(max(len(self._array) - size + 1, 0), dtype=np.bool_)
        for i, token in enumerate(wanted):
            found &= self._array[i : len(self._array) - size + 1 + i] == token
        return np.flatnonzero(found) + size
