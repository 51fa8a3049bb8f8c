"""What rounds take: found from noisy rounds that ran, stalls aside, and unknown where none did."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.telemetry.round_seconds import RoundSeconds, features
from adaptspec.types import FloatArray


def work(drafted: FloatArray) -> FloatArray:
    """Rounds of one row and one drafter."""
    column = drafted[:, None].astype(np.float64)
    return features(0.0, column, column, 0.0 * column)


def fitted(depths: tuple[int, ...], rounds: int = 400, *, noise: float = 0.2, stalls: float = 0.02) -> RoundSeconds:
    """A plain round takes 10 ms, each drafted token 1 ms more."""
    rng, fit = np.random.default_rng(0), RoundSeconds(1)
    for _ in range(rounds // 40):
        drafted = rng.choice(depths, 40)
        seconds = (0.010 + 0.001 * drafted) * np.exp(rng.normal(0.0, noise, 40))
        fit.add(work(drafted), np.where(rng.random(40) < stalls, 10.0, 1.0) * seconds)
    return fit


@pytest.mark.parametrize("depth", [0, 1, 3, 5, 7])
def test_what_was_run_is_known_within_the_error_it_states(depth: int) -> None:
    """Stalls of ten times in one round of fifty are not taken for what rounds take."""
    seconds, error = fitted((0, 1, 3, 7)).seconds(work(np.array([depth]))[0])
    assert abs(seconds - (0.010 + 0.001 * depth)) < error + 0.1 * seconds
    assert error < 0.25 * seconds


def test_what_was_never_run_is_unknown() -> None:
    """Plain rounds from rounds that all drafted, deep ones from shallow ones."""
    for depths, asked in (((3,), 0), ((0, 1), 7)):
        seconds, error = fitted(depths).seconds(work(np.array([asked]))[0])
        assert error > abs(seconds)


def test_what_the_machine_hesitated_is_said() -> None:
    fit = fitted((0,), stalls=0.0, noise=0.0)
    assert fit.add(work(np.zeros(2)), np.array([0.01, 0.1])) == pytest.approx([0.0, 0.07], rel=0.05)
