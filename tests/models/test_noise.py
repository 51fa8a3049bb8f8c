"""The noise is a fixed function of its keys, and looks random in every direction it is used.

All inputs are fixed, so each p-value is a constant: a test here fails only if the hash changes.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.models.noise import Floats, Stream, gumbel, position_keys, seed_keys, token_keys, uniform

LEAST = 1e-3
WORD = 2**64 - 1


def _keys(seeds: int, positions: int, stream: Stream = Stream.CHOICE, rounds: int = 0) -> IntArray:
    """Keys of the first seeds and positions, as a client would count them up: [seeds * positions]."""
    seed, position = np.divmod(np.arange(seeds * positions), positions)
    return position_keys(seed_keys(seed), position, stream, rounds)


def noise_of(keys: IntArray, vocab: int) -> Floats:
    """Noise of all tokens at positions with these keys, [N, vocab]."""
    return np.stack([gumbel(key, token_keys(vocab)) for key in keys])


def _levels(noise: Floats) -> FloatArray:
    """Gumbel noise through its own distribution function: uniform if the noise is right."""
    levels: FloatArray = np.exp(-np.exp(-noise.astype(np.float64)))
    return levels


def _uniformity(numbers: FloatArray, bins: int = 256) -> float:
    return float(stats.chisquare(np.histogram(numbers, bins, (0.0, 1.0))[0]).pvalue)


def _independence(one: FloatArray, other: FloatArray, bins: int = 16) -> float:
    cells = np.histogram2d(one.ravel(), other.ravel(), bins, ((0.0, 1.0), (0.0, 1.0)))[0]
    return float(stats.chisquare(cells.ravel()).pvalue)


def _mix(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & WORD
    return word ^ (word >> 31)


def test_noise_is_the_documented_hash() -> None:
    """Python's own integers give the same noise: what seeded requests produce must not drift between versions."""
    seed, position, rounds, vocab = -5, 77, 70, 9
    key = _mix(_mix((seed + 0x9E3779B97F4A7C15) & WORD) ^ (position << 32 | rounds << 4 | Stream.DRAFT))
    keys = position_keys(seed_keys(np.array([seed])), np.array([position]), Stream.DRAFT, rounds)
    assert int(keys[0]) & WORD == key
    assert uniform(keys)[0] == (key >> 11) / 2**53
    noise = noise_of(keys, vocab)
    for token in range(vocab):
        word = (key ^ _mix((token * 0x9E3779B97F4A7C15 + 0x94D049BB133111EB) & WORD)) * 0xD6E8FEB86659FD93 & WORD
        signed = word - 2**64 if word >> 63 else word
        word = (word ^ signed >> 32) * 0xA0761D6478BD642F & WORD
        v = (2**63 - (word & (2**63 - 1) | 1)) / 2**63
        assert noise[0, token] == pytest.approx(-math.log(-math.log1p(-v)), rel=1e-5, abs=1e-6)


def test_single_tokens_have_the_noise_of_the_whole_vocabulary() -> None:
    """Rows with few tokens left must draw what others draw: the same bits, whatever is computed together."""
    key, words = _keys(1, 1)[0], token_keys(40_000)
    some = np.arange(0, 40_000, 7)
    np.testing.assert_array_equal(gumbel(key, words[some]), gumbel(key, words)[some])
    np.testing.assert_array_equal(gumbel(key, words[9:10]), gumbel(key, words)[9:10])


def test_a_wider_vocabulary_does_not_change_the_noise_of_a_token() -> None:
    np.testing.assert_array_equal(noise_of(_keys(2, 2), 50)[:, :33], noise_of(_keys(2, 2), 33))


def test_uniform_numbers_are_uniform_and_below_one() -> None:
    numbers = uniform(_keys(300, 300, Stream.ACCEPT))
    assert 0.0 <= numbers.min() <= numbers.max() < 1.0
    assert _uniformity(numbers) > LEAST
    assert uniform(np.array([-1]))[0] < 1.0


def test_gumbel_noise_has_the_gumbel_distribution() -> None:
    noise = noise_of(_keys(20, 20), 2000)
    assert np.isfinite(noise).all()
    assert _uniformity(_levels(noise)) > LEAST


def test_the_upper_tail_is_exact_far_beyond_24_bits() -> None:
    """What wins an argmax over a large vocabulary comes from here: P(g > x) is about exp(-x)."""
    total, chunks = 0, 8
    above = np.zeros(3)
    for chunk in range(chunks):
        keys = position_keys(seed_keys(np.full(500, 3)), np.arange(500) + 500 * chunk, Stream.CHOICE)
        noise = noise_of(keys, 4096)
        total += noise.size
        above += [int((noise > x).sum()) for x in (8.0, 11.0, 14.0)]
    for count, x in zip(above, (8.0, 11.0, 14.0), strict=True):
        assert stats.poisson.cdf(count, total * math.exp(-x)) > LEAST
        assert stats.poisson.sf(count - 1, total * math.exp(-x)) > LEAST


@pytest.mark.parametrize("step", [1, 2, 64])
def test_noise_is_independent_between_tokens_positions_and_seeds(step: int) -> None:
    """Neighbours are what sampling compares and multiplies; powers of two are where weak hashes repeat."""
    levels = _levels(noise_of(_keys(80, 80), 80)).reshape(80, 80, 80)
    assert _independence(levels[step:], levels[:-step]) > LEAST
    assert _independence(levels[:, step:], levels[:, :-step]) > LEAST
    assert _independence(levels[:, :, step:], levels[:, :, :-step]) > LEAST


def test_streams_and_rounds_have_noise_of_their_own() -> None:
    """Else a rejected token would be proposed again, and the bonus would follow the draft."""
    choice, draft, later = (
        _levels(noise_of(keys, 200))
        for keys in (_keys(40, 40), _keys(40, 40, Stream.DRAFT), _keys(40, 40, Stream.DRAFT, 1))
    )
    assert _independence(choice, draft) > LEAST
    assert _independence(draft, later) > LEAST
    assert _independence(uniform(_keys(200, 200, Stream.ACCEPT)), uniform(_keys(200, 200, Stream.ACCEPT, 1))) > LEAST


def test_every_token_of_a_large_vocabulary_wins_equally_often() -> None:
    winners = np.concatenate(
        [
            noise_of(position_keys(seed_keys(np.arange(1000)), np.full(1000, p), Stream.CHOICE), 512).argmax(1)
            for p in range(16)
        ]
    )
    assert stats.chisquare(np.bincount(winners, minlength=512)).pvalue > LEAST
    pairs = np.bincount(winners[:-1] % 16 * 16 + winners[1:] % 16, minlength=256)
    assert stats.chisquare(pairs).pvalue > LEAST
