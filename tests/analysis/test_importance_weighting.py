"""Importance weights in worlds whose truth is known: no bias, intervals that hold what they promise, clear bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.analysis.importance_weighting import WeightedGoodput, weighted_goodput
from adaptspec.types import FloatArray

# Tokens emitted and seconds by [context, arm]; what pays differs by context.
TOKENS = np.array([[1.0, 1.4, 1.6], [1.0, 1.9, 3.2]])
SECONDS = np.array([[1.0, 1.2, 1.8], [1.0, 1.2, 1.8]])
CHANCES = np.array([[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]])
WANTED = np.array([1, 2])  # what the policy in question would do
TRUTH = TOKENS[[0, 1], WANTED].sum() / SECONDS[[0, 1], WANTED].sum()
DWELL = 4


def _log(rounds: int, rng: np.random.Generator, chances: FloatArray = CHANCES) -> WeightedGoodput:
    """Rounds whose arm is drawn for four of them at a time, by probabilities that depend on the context."""
    context = np.repeat(rng.integers(2, size=rounds // DWELL), DWELL)
    luck = np.repeat(rng.random(rounds // DWELL), DWELL)
    arm = (np.cumsum(chances[context], axis=1) <= luck[:, None]).sum(axis=1)
    tokens = np.where(rng.random(rounds) < TOKENS[context, arm] % 1.0, 1.0, 0.0) + np.floor(TOKENS[context, arm])
    seconds = SECONDS[context, arm] * np.exp(rng.normal(-0.005, 0.1, rounds))
    return weighted_goodput(tokens, seconds, chances[context, arm], arm == WANTED[context], np.arange(rounds))


def test_it_is_unbiased_and_its_intervals_cover_the_truth() -> None:
    """300 logs: the mean of the estimates is the truth, and 95 % intervals hold it about that often."""
    rng = np.random.default_rng(0)
    found = [_log(1600, rng) for _ in range(300)]
    goodputs = np.array([one.goodput.value for one in found])
    error = goodputs.std() / np.sqrt(len(goodputs))
    assert abs(goodputs.mean() - TRUTH) < 3.0 * error + 0.002
    covered = np.mean([one.goodput.low <= TRUTH <= one.goodput.high for one in found])
    assert 0.91 <= covered <= 0.985
    played = (CHANCES * TOKENS).sum() / (CHANCES * SECONDS).sum()
    ratios = [one.over_logged.low <= TRUTH / played <= one.over_logged.high for one in found]
    assert 0.91 <= np.mean(ratios) <= 0.985


def _kept(decisions: int, rng: np.random.Generator, *, known: bool) -> WeightedGoodput:
    """A log of decisions that serve 1 to 15 rounds each, as those of hosts do; `known`: which rounds are of which."""
    serves = rng.integers(1, 16, decisions)
    of = np.repeat(np.arange(decisions), serves)
    context, luck = rng.integers(2, size=decisions), rng.random(decisions)
    arm = (np.cumsum(CHANCES[context], axis=1) <= luck[:, None]).sum(axis=1)
    pace = rng.normal(1.0, 0.2, decisions)  # of the requests that ran
    tokens = (TOKENS[context, arm] * pace)[of]
    chances, alike = CHANCES[context, arm][of], (arm == WANTED[context])[of]
    numbers = of if known else np.arange(len(of))
    return weighted_goodput(tokens, SECONDS[context, arm][of], chances, alike, numbers)


def test_intervals_cover_where_decisions_serve_several_rounds() -> None:
    """300 logs of 30 decisions: as 240 rounds that were decided apart, they would promise more than they hold."""
    rng = np.random.default_rng(3)
    covered = {True: 0, False: 0}
    for known in covered:
        for _ in range(300):
            found = _kept(30, rng, known=known)
            covered[known] += found.goodput.low <= TRUTH <= found.goodput.high
            assert not known or found.effective <= 30.0
    assert covered[True] / 300 >= 0.9
    assert covered[False] / 300 < 0.85


def test_unweighted_matches_would_be_biased() -> None:
    """What the weights are for: the same rounds counted alike favour the context where they were likely."""
    rng = np.random.default_rng(1)
    naive = np.einsum("ca,ca->c", CHANCES, TOKENS * (np.arange(3) == WANTED[:, None])).sum()
    naive /= np.einsum("ca,ca->c", CHANCES, SECONDS * (np.arange(3) == WANTED[:, None])).sum()
    assert abs(naive - TRUTH) > 0.05
    assert abs(np.mean([_log(1600, rng).goodput.value for _ in range(50)]) - TRUTH) < 0.02


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rounds=st.integers(80, 400),
    clip=st.floats(1.0, 100.0),
    unit=st.floats(1e-4, 1e3),
    kept=st.sampled_from([0.3, 0.6, 1.0]),
)
def test_bounds_hold_whatever_the_log(seed: int, rounds: int, clip: float, unit: float, kept: float) -> None:
    """The estimate lies among the goodputs that were matched, no weight passes the clip, and units do not matter."""
    rng = np.random.default_rng(seed)
    tokens, seconds = rng.integers(1, 9, rounds).astype(float), rng.uniform(0.5, 3.0, rounds)
    chance, matched = rng.uniform(0.01, 1.0, rounds), rng.random(rounds) < 0.5
    decisions = np.cumsum(rng.random(rounds) < kept)
    found = weighted_goodput(tokens, seconds, chance, matched, decisions, clip=clip)
    each = (tokens / seconds)[matched]
    assert each.min() - 1e-9 <= found.goodput.value <= each.max() + 1e-9
    assert found.goodput.low <= found.goodput.value <= found.goodput.high
    assert 1.0 <= found.effective <= found.matched + 1e-9
    assert -1e-9 <= found.clipped < 1.0
    assert (found.clipped > 1e-12) == bool((1.0 / chance[matched] > clip * (1.0 + 1e-9)).any())
    scaled = weighted_goodput(tokens, seconds * unit, chance, matched, decisions, clip=clip)
    assert scaled.goodput.value * unit == pytest.approx(found.goodput.value)
    assert scaled.over_logged.low == pytest.approx(found.over_logged.low, abs=1e-9)


def test_its_own_rounds_give_what_was_measured() -> None:
    """A policy that would have done all that was done has exactly the goodput that was delivered."""
    rng = np.random.default_rng(2)
    tokens, seconds = rng.integers(1, 9, 400).astype(float), rng.uniform(0.5, 3.0, 400)
    found = weighted_goodput(tokens, seconds, np.ones(400), np.ones(400, dtype=np.bool_), np.arange(400))
    assert found.goodput.value == pytest.approx(tokens.sum() / seconds.sum())
    assert found.over_logged.value == found.over_logged.low == found.over_logged.high == pytest.approx(1.0)
    assert found.effective == pytest.approx(400.0)


def test_nothing_in_common_is_an_error() -> None:
    with pytest.raises(ValueError, match="weight"):
        weighted_goodput(np.ones(100), np.ones(100), np.ones(100), np.zeros(100, dtype=np.bool_), np.arange(100))
