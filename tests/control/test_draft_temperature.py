"""The tuner of the draft temperature: it finds what is accepted more, on evidence only, apart for each policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from adaptspec.control.draft_temperature import (
    DraftTemperature,
    DraftTemperatureSpec,
    DynamicTemperature,
    DynamicTemperatureSpec,
)
from adaptspec.decision_tables import CANDIDATES
from adaptspec.types import FloatArray
from tests.control.helpers import record


def observe(tuner: DynamicTemperature, entropy: FloatArray, scores: FloatArray) -> None:
    """A round of one scored token for each of four rows, beside tokens that nobody scored."""
    told, spread = np.full((4, 3, len(CANDIDATES)), np.nan), np.full((4, 3), 9.0)
    told[:, 1], spread[:, 1] = scores, entropy
    tuner.learn(replace(record([3] * 4, [3] * 4), entropy=spread, temperature_scores=told))


def at(tuner: DraftTemperature, entropy: list[float]) -> list[float]:
    """Temperatures of one row's tokens of these entropies, in the coming round."""
    table = tuner.table(2)
    if table is None:
        return [1.0] * len(entropy)
    found: list[float] = table.at(np.ones(len(entropy), dtype=np.int64), np.array(entropy)).tolist()
    return found


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
        flat, sharp = random.normal(0.0, 1.0, (4, 20)), random.normal(0.0, 6.0, (4, 20))
        observe(tuner, np.full(4, 2.5), _overlaps(flat, 0.65))
        observe(tuner, np.full(4, 0.05), _overlaps(sharp, 1.0))
    assert at(tuner, [2.5, 0.05, 1.2]) == [0.65, 1.0, 1.0]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_all_candidates_share_moves_nothing(seed: int) -> None:
    """Gains count, not scores: a well accepted token says nothing for any temperature."""
    random, tuner = np.random.default_rng(seed), DynamicTemperature()
    for _ in range(50):
        observe(tuner, np.full(4, 0.5), (random.random((4, 1)) < 0.7) * np.ones((4, len(CANDIDATES))))
    assert at(tuner, [0.5]) == [1.0]


def test_too_few_tokens_change_nothing() -> None:
    tuner = DynamicTemperature()
    gain = np.zeros((4, len(CANDIDATES)))
    gain[:, 0] = 1.0
    for _ in range(3):
        observe(tuner, np.full(4, 0.5), gain)
    assert at(tuner, [0.5]) == [1.0]
    for _ in range(3):
        observe(tuner, np.full(4, 0.5), gain)
    assert at(tuner, [0.5]) == [CANDIDATES[0]]


def test_it_follows_a_shift() -> None:
    """Old counts fade: a draft that was too flat becomes too sharp."""
    random, tuner = np.random.default_rng(1), DynamicTemperature()
    for true in (0.65, 1.5):
        for _ in range(700):
            logits = random.normal(0.0, 1.5, (4, 12))
            observe(tuner, _entropy(logits) * 0 + 1.2, _overlaps(logits, true))
        assert at(tuner, [1.2]) == [true]


def test_it_stays_in_its_range_and_goes_as_far_as_its_gain() -> None:
    """A sharper draft would be accepted more: how sharp it may get, and how much of the way it goes."""
    scores = np.tile(np.linspace(1.0, 0.3, len(CANDIDATES)), (4, 1))
    found = []
    for text in ({}, {"range": [0.8, 1.25]}, {"gain": 0.5}, {"range": [1.0, 1.5]}):
        spec = TypeAdapter(DraftTemperatureSpec).validate_python({"mode": "dynamic", **text})
        assert isinstance(spec, DynamicTemperatureSpec)
        tuner = spec.build()
        assert isinstance(tuner, DynamicTemperature)
        for _ in range(20):
            observe(tuner, np.full(4, 0.5), scores)
        found.append(at(tuner, [0.5]))
    assert found == [[0.5], [0.8], [pytest.approx(0.5**0.5)], [1.0]]
