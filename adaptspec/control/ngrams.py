"""Hashed character n-grams of a text: the same indices on every machine and in every version.

Works on UTF-8 bytes with arithmetic of our own, so that what was trained with one library can be used without it.
Knows nothing of tasks.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from adaptspec.types import IntArray

_BITS = 15
SIZE = 2**_BITS  # different indices
HEAD, TAIL = 500, 300  # characters that are looked at: what to do is said at the beginning or at the end
_EDGE = 48  # bytes at either end whose n-grams count apart as well
_LONGEST = 5
_EVERYWHERE, _FIRST, _LAST = 0, 37, 74  # where an n-gram stands enters its hash

# Capitals, the value of numbers and the kind of white space tell little about a task.
_FOLD = bytes.maketrans(bytes(range(65, 91)) + b"123456789\t\r", bytes(range(97, 123)) + b"0" * 9 + b" \n")
# Chat templates leave these behind when their special tokens are dropped.
_ROLE_LINE = re.compile(r"^ *(?:system|user|assistant|model|developer) *$", re.MULTILINE)

_Hashes = npt.NDArray[np.uint32]


def ngrams(text: str) -> IntArray:
    """Indices (ascending, each once, 0 <= index < SIZE) of the n-grams of 2 to 5 bytes in the text's head and tail.

    Every n-gram counts once; those of the first and the last 48 bytes have one more index for being there. Lone
    surrogates count as question marks. An empty text has none.
    """
    if len(text) > HEAD + TAIL:
        text = f"{text[:HEAD]}\n{text[-TAIL:]}"
    text = _ROLE_LINE.sub("", text).strip()
    if not text:
        return np.zeros(0, dtype=np.int64)
    folded = np.frombuffer(b"\n" + text.encode("utf-8", "replace").translate(_FOLD) + b"\n", np.uint8)
    present = np.zeros(SIZE, dtype=np.bool_)
    for part, place in ((folded, _EVERYWHERE), (folded[:_EDGE], _FIRST), (folded[-_EDGE:], _LAST)):
        for index in _indices(part, place):
            present[index] = True
    return np.flatnonzero(present)


def _indices(part: npt.NDArray[np.uint8], place: int) -> list[_Hashes]:
    """h(b_1 ... b_n) = sum of (b_i + 1) m^(n - i) modulo 2^32, then bits mixed until the highest depend on all."""
    symbols = part.astype(np.uint32) + np.uint32(1)
    rolling, found = symbols, []
    for length in range(2, min(_LONGEST, len(part)) + 1):
        rolling = rolling[:-1] * np.uint32(0x9E3779B1) + symbols[length - 1 :]
        found.append(_mix(rolling, np.uint32((place + length) * 0x27D4EB2F % 2**32)))
    return found


def _mix(hashes: _Hashes, salt: np.uint32) -> _Hashes:
    """The finishing steps of MurmurHash3 (public domain), with shifts that suit 15 bits of result."""
    mixed = (hashes ^ salt) * np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(13)
    shortened: _Hashes = mixed >> np.uint32(32 - _BITS)
    return shortened
