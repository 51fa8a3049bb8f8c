"""Ratios of rounds' seconds: found from noisy measured rounds, and unknown where no such round ran."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


PLAIN = work(np.array([0]))[0]


def cost(depth: int) -> float:
    """Seconds of a round over those of a plain one."""
    return 1.0 + 0.1 * depth


@pytest.mark.parametrize("depth", [0, 1, 3, 5, 7])
def test_the_ratio_to_a_plain_round_is_known_within_the_error_it_states(depth: int) -> None:
    """Pauses of ten times in one round of fifty do not count as work."""
    ratio, error = fitted((0, 1, 3, 7)).ratio(work(np.array([depth]))[0], PLAIN)
    assert abs(ratio - cost(depth)) <= error
    assert error < 0.25 * ratio


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_drafters_of_different_costs_keep_their_own_prices(share: float) -> None:
    """N-gram rounds are cheap and rounds of a draft model are not, at the same depth: both enter the fit."""
    rng, fit = np.random.default_rng(0), RoundSeconds(2)

    def rounds(depth: FloatArray, drafter: FloatArray) -> FloatArray:
        drafted = depth[:, None] * np.eye(2)[drafter.astype(np.int64)]
        return features(0.0, drafted, drafted, 0.0 * drafted)

    cost = {0: 0.02, 1: 0.20}  # of each drafted token, in plain rounds
    for _ in range(20):
        depth, drafter = rng.choice([0.0, 3.0, 7.0], 40), (rng.random(40) < share).astype(np.float64)
        price = np.where(drafter == 1, cost[1], cost[0])
        fit.add(rounds(depth, drafter), 0.01 * (1 + price * depth) * np.exp(rng.normal(0.0, 0.05, 40)))
    for which, price in cost.items():
        for depth in (3.0, 7.0):
            some = rounds(np.array([depth]), np.array([float(which)]))[0]
            ratio, error = fit.ratio(some, rounds(np.zeros(1), np.zeros(1))[0])
            assert ratio == pytest.approx(1 + price * depth, rel=0.05)
            assert error < 0.25 * ratio


def test_the_ratio_of_equal_work_is_exactly_one() -> None:
    fit = fitted((0, 1, 3))
    for depths in ([0], [0, 0, 0], [1, 3]):
        some = work(np.array(depths)).sum(axis=0)
        assert fit.ratio(some, some) == (1.0, 0.0)


def test_what_never_ran_is_unknown() -> None:
    """Plain rounds from rounds that all drafted, deep ones from shallow ones."""
    for depths, asked, known in (((3,), 0, 3), ((0, 1), 7, 0)):
        one, other = (work(np.array([depth]))[0] for depth in (asked, known))
        ratio, error = fitted(depths).ratio(one, other)
        assert error > abs(ratio)
    assert RoundSeconds(1).ratio(PLAIN, PLAIN)[1] == math.inf


@settings(max_examples=40, deadline=None)
@given(
    speeds=st.lists(st.sampled_from([0.3, 1.0, 3.0]), min_size=1, max_size=4),
    share=st.sampled_from([0.05, 0.5, 0.95]),
    seconds=st.sampled_from([0.002, 0.01, 0.05]),
    seed=st.integers(0, 100),
)
def test_the_ratio_survives_a_clock_that_changes(speeds: list[float], share: float, seconds: float, seed: int) -> None:
    """Both kinds of rounds were seen at the first speed; then any share of them runs at any other speed."""
    rng, fit = np.random.default_rng(seed), RoundSeconds(1)
    for speed, plain in zip([1.0, *speeds], [0.5, *[share] * len(speeds)], strict=True):
        for _ in range(40):
            drafted = np.where(rng.random(25) < plain, 0, 3)
            fit.add(work(drafted), seconds * speed * cost(3) ** (drafted > 0) * np.exp(rng.normal(0.0, 0.05, 25)))
    ratio, _ = fit.ratio(work(np.array([3]))[0], PLAIN)
    assert ratio == pytest.approx(cost(3), rel=0.1)


def test_what_was_learned_wrongly_is_given_up() -> None:
    """The clock changed with the first draft, so drafts seemed almost free; plain rounds then show otherwise."""
    fit = RoundSeconds(1)
    for _ in range(20):
        fit.add(work(np.zeros(20)), np.full(20, 0.030))
    for i in range(40):
        drafted = np.where(np.arange(20) == i % 20, 0, 3)
        fit.add(work(drafted), np.where(drafted > 0, 0.013, 0.010))
    ratio, error = fit.ratio(work(np.array([3]))[0], PLAIN)
    assert abs(ratio - cost(3)) <= error
    assert error < 0.25


def test_no_round_and_rounds_without_time_break_nothing() -> None:
    fit = RoundSeconds(1)
    fit.add(work(np.zeros(3)), np.zeros(3))
    fit.add(work(np.zeros(3)), np.full(3, 0.01))
    ratio, _ = fit.ratio(PLAIN, PLAIN)
    assert ratio == 1.0
