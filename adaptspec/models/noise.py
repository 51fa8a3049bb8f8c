"""Noise without state: a hash of (seed, position, token) gives the same number wherever and whenever it is asked for.

Sampling is argmax(score + Gumbel noise). Because the noise of a position depends on nothing but the
request's seed and the position, it does not matter in which round, batch or depth a position is decided.

Hash: keys of positions and of tokens go through SplitMix64's finalizer (Steele, Lea, Flood 2014), once per key;
per pair they are combined by xor and one multiply-xorshift-multiply. That is two multiplications on [N, V]
where a full finalizer on pairs would take twice the time and change nothing the tests can see.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from adaptspec.arrays import FloatArray, IntArray

Floats = npt.NDArray[np.float32]
_Words = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
# The same kind of odd 64-bit constants, as signed integers, whose products wrap around.
PAIR_FIRST = 0xD6E8FEB86659FD93 - 2**64
PAIR_SECOND = 0xA0761D6478BD642F - 2**64
SIGN_AND_LAST = 1 - 2**63
_ALL = 2**64 - 1
# Just under 2**-63: the largest 63-bit word must not round to 1, where log1p(-v) is infinite.
UNIT = 2.0**-63 * (1.0 - 2.0**-24)
# Tokens whose words are in memory at a time: they fit into a core's cache, and malloc keeps their memory.
_BLOCK = 16384
# The same as numbers without sign.
_SIGN, _HIGH, _TOP_AND_LAST = 2**31, 2**64 - 2**32, 2**63 + 1


class Stream(IntEnum):
    """What a position's noise is for; different streams are independent."""

    CHOICE = 0  # the token that ends up at the position
    DRAFT = 1  # a guess drawn independently of the target
    ACCEPT = 2  # whether such a guess is accepted


def seed_keys(seeds: IntArray) -> IntArray:
    """Keys [N] of requests' seeds: what `position_keys` starts from."""
    return _mix(seeds.astype(np.int64).view(np.uint64) + _GOLDEN).view(np.int64)


def position_keys(seeds: IntArray, positions: IntArray, stream: Stream, rounds: IntArray | int = 0) -> IntArray:
    """Keys [N] for the noise of N positions; `seeds` are the `seed_keys` of their requests.

    `rounds` tells apart several draws at one position in one stream: a position that is drafted again in a later round
    needs fresh noise, or what was rejected would be proposed again. Positions are below 2**31 and rounds below 2**28.
    """
    word = (positions << 32) | (rounds << 4) | int(stream)
    return _mix((seeds ^ word).view(np.uint64)).view(np.int64)


def uniform(keys: IntArray) -> FloatArray:
    """Numbers [N] in [0, 1), 53 bits each. Keys used here must not be used for `gumbel`."""
    numbers: FloatArray = (keys.view(np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers


def gumbel(key: int, words: IntArray) -> Floats:
    """Standard Gumbel noise [M] at the position of a key, for tokens with these `token_keys`; always finite.

    Noise is -log(E) with E = -log1p(-v) exponential. The winner of an argmax lies in the upper tail,
    that is at tiny v, so v comes from 62 bits and keeps its relative precision as a float32: values reach 43
    where a 24-bit uniform would stop at 17 and favour likely tokens.
    """
    noise: Floats = np.empty(len(words), dtype=np.float32)
    for start in range(0, len(words), _BLOCK):
        part = slice(start, start + _BLOCK)
        word = words[part] ^ key
        word *= PAIR_FIRST
        # The shift is arithmetic, which costs the top bit; the other 63 stay one-to-one, and only they are used.
        word ^= word >> 32
        word *= PAIR_SECOND
        # With sign and last bit set, the word is an odd negative number, uniform over (-2**63, 0): it scales to -v.
        word |= SIGN_AND_LAST
        noise[part] = word
    noise *= UNIT
    np.negative(np.log1p(noise, out=noise), out=noise)
    return np.negative(np.log(noise, out=noise), out=noise)


def token_words(vocab_size: int) -> Sequence[int]:
    """What `drawn_of_few` wants of each token id."""
    words: list[int] = token_keys(vocab_size).view(np.uint64).tolist()
    return words


def position_word(seed_key: int, position: int) -> int:
    """The key of one position for its `CHOICE`, in plain numbers; `seed_key` is one of `seed_keys`."""
    word = (seed_key ^ (position << 32)) & _ALL
    word = ((word ^ (word >> 30)) * int(_FIRST)) & _ALL
    word = ((word ^ (word >> 27)) * int(_SECOND)) & _ALL
    return word ^ (word >> 31)


def drawn_of_few(
    word: int, chances: Iterable[tuple[int, float]], words: Sequence[int], power: float
) -> list[tuple[int, float]]:
    """Some tokens at one position, each with its exp(power * log chance + `gumbel`), which is chance ** power / E.

    But for rounding; for a handful in a tenth of the time that arrays would take.
    """
    drawn = []
    for token, chance in chances:
        pair = ((word ^ words[token]) * PAIR_FIRST) & _ALL
        high = pair >> 32
        pair ^= high | _HIGH if high & _SIGN else high  # an arithmetic shift
        signed = ((pair * PAIR_SECOND & _ALL) | _TOP_AND_LAST) - 2**64
        drawn.append((token, chance**power / -math.log1p(signed * UNIT)))
    return drawn


@lru_cache(maxsize=8)
def token_keys(vocab_size: int) -> IntArray:
    """Keys [vocab_size] of all tokens."""
    tokens = np.arange(vocab_size, dtype=np.uint64)
    return _mix(tokens * _GOLDEN + _SECOND).view(np.int64)


def _mix(word: _Words) -> _Words:
    word = (word ^ (word >> np.uint64(30))) * _FIRST
    word = (word ^ (word >> np.uint64(27))) * _SECOND
    mixed: _Words = word ^ (word >> np.uint64(31))
    return mixed
