"""The tuner of the draft temperature: it finds what is accepted more, on evidence only, apart for each policy."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.draft_temperature import (
    CANDIDATES,
    DynamicTemperature,
    FixedTemperature,
    SplitTemperature,
)
from adaptspec.types import FloatArray

ROWS = np.arange(4)


def _overlaps(logits: FloatArray, true_temperature: float) -> FloatArray:
    """sum(min(p, q')) of every candidate where the target is the draft at `true_temperature`."""

    def shares(temperature: float) -> FloatArray:
        weights = np.exp(logits / temperature - (logits / temperature).max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    target = shares(true_temperature)
    return np.stack([np.minimum(target, shares(candidate)).sum(axis=1) for candidate in CANDIDATES], axis=1)


def _entropy(logits: FloatArray) -> FloatArray:
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return np.asarray(-(shares * np.log(shares)).sum(axis=1))


def test_it_finds_the_temperature_that_makes_the_draft_the_target() -> None:
    """Unsure tokens are drawn from a draft too flat by 1/0.65, sure ones from one that is right."""
    random, tuner = np.random.default_rng(0), DynamicTemperature()
    for _ in range(60):
        tuner.begin()
        flat, sharp = random.normal(0.0, 1.0, (4, 20)), random.normal(0.0, 6.0, (4, 20))
        tuner.observe(ROWS, np.full(4, 2.5), _overlaps(flat, 0.65))
        tuner.observe(ROWS, np.full(4, 0.05), _overlaps(sharp, 1.0))
    temperatures = tuner.begin()(np.arange(3), np.array([2.5, 0.05, 1.2]))
    assert temperatures.tolist() == [0.65, 1.0, 1.0]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_all_candidates_share_moves_nothing(seed: int) -> None:
    """Gains count, not scores: a well accepted token says nothing for any temperature."""
    random, tuner = np.random.default_rng(seed), DynamicTemperature()
    for _ in range(50):
        tuner.observe(ROWS, np.full(4, 0.5), (random.random((4, 1)) < 0.7) * np.ones((4, len(CANDIDATES))))
    assert (tuner.begin()(ROWS, np.full(4, 0.5)) == 1.0).all()


def test_too_few_tokens_change_nothing() -> None:
    tuner = DynamicTemperature()
    gain = np.zeros((4, len(CANDIDATES)))
    gain[:, 0] = 1.0
    for _ in range(3):
        tuner.observe(ROWS, np.full(4, 0.5), gain)
    assert (tuner.begin()(ROWS, np.full(4, 0.5)) == 1.0).all()
    for _ in range(3):
        tuner.observe(ROWS, np.full(4, 0.5), gain)
    assert (tuner.begin()(ROWS, np.full(4, 0.5)) == CANDIDATES[0]).all()


def test_it_follows_a_shift() -> None:
    """Old counts fade: a draft that was too flat becomes too sharp."""
    random, tuner = np.random.default_rng(1), DynamicTemperature()
    for true in (0.65, 1.5):
        for _ in range(700):
            logits = random.normal(0.0, 1.5, (4, 12))
            tuner.observe(ROWS, _entropy(logits) * 0 + 1.2, _overlaps(logits, true))
        assert tuner.begin()(np.arange(1), np.array([1.2])).item() == true


def test_only_every_so_many_rounds_are_scored() -> None:
    tuner = DynamicTemperature(score_every=3)
    assert [tuner.begin().scored for _ in range(7)] == [True, False, False, True, False, False, True]


def test_learning_switches_nothing_before_the_next_round() -> None:
    tuner = DynamicTemperature()
    current = tuner.begin()
    gain = np.zeros((4, len(CANDIDATES)))
    gain[:, 0] = 1.0
    for _ in range(20):
        tuner.observe(ROWS, np.full(4, 0.5), gain)
        assert (current(ROWS, np.full(4, 0.5)) == 1.0).all()


def test_policies_in_one_round_keep_their_own() -> None:
    tuner = DynamicTemperature(score_every=1)
    fixed = FixedTemperature(0.8)
    parts = [(np.array([0, 2]), fixed.begin()), (np.array([1]), tuner.begin()), (np.array([3]), None)]
    split = SplitTemperature(parts, 4)
    assert split.scored
    assert split(ROWS, np.full(4, 0.5)).tolist() == [0.8, 1.0, 0.8, 1.0]
    gain = np.zeros((4, len(CANDIDATES)))
    gain[1, 0] = gain[0, 1] = gain[3, 1] = 1.0
    for _ in range(20):
        split.observe(ROWS, np.full(4, 0.5), gain)
    tuner.begin()
    assert split(ROWS, np.full(4, 0.5)).tolist() == [0.8, CANDIDATES[0], 0.8, 1.0], "it learns from its own rows only"
    assert not SplitTemperature([(ROWS, fixed.begin())], 4).scored
