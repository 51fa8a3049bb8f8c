"""The common prefix of two token lists."""

from __future__ import annotations

_COMPARED = 256  # tokens compared at a time


def common_prefix(a: list[int], b: list[int]) -> int:
    """The number of equal tokens at the beginning of `a` and `b`."""
    length = min(len(a), len(b))
    for start in range(0, length, _COMPARED):
        end = min(start + _COMPARED, length)
        if a[start:end] != b[start:end]:
            return next(i for i in range(start, end) if a[i] != b[i])
    return length
