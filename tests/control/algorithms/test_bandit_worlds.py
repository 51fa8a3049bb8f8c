"""Bandits in simulated worlds: near the best arm, better than chance, cheap where off is right, quick after a shift."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest

from adaptspec.simulation.tape import join
from adaptspec.types import RoundRecord
from tests.control.simulator import HEADER, Text, run, run_fixed, texts
from tests.control.two_drafters import best, request, serve

pytestmark = pytest.mark.whole

ALGORITHMS = ("ucb", "thompson", "exp3", "linucb", "nightjar")
# Weights that hardly follow goodput: arms drawn uniformly.
UNIFORM = HEADER + "  choose: {algorithm: exp3, rate: 0.000001}\n"
TIERS = (0, 1, 3, 7)


def policy(algorithm: str) -> str:
    return HEADER + f"  choose: {{algorithm: {algorithm}}}\n"


def steady(acceptance: float, batch: int) -> list[Text]:
    return texts(acceptance, 24 * batch if batch == 1 else 15 * batch, length=128 if batch == 1 else 60, seed=1)


@lru_cache
def best_arm(acceptance: float, batch: int) -> float:
    return max(run_fixed(depth, steady(acceptance, batch), batch) for depth in TIERS)


def goodput(records: Sequence[RoundRecord]) -> float:
    return float(sum(r.emitted.sum() for r in records) / sum(r.total_seconds for r in records))


def switches(records: Sequence[RoundRecord]) -> float:
    """Of the first row's arm, per 1,000 rounds."""
    arms = [int(r.provenance.arms[0]) for r in records if r.provenance is not None]
    return 1000.0 * np.count_nonzero(np.diff(arms)) / len(arms)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("acceptance", "batch"), [(0.7, 1), (0.95, 1), (0.6, 8)])
def test_steady_traffic_ends_within_five_percent_of_the_best_arm(algorithm: str, acceptance: float, batch: int) -> None:
    """The second half; and never more than 50 switches per 1,000 rounds."""
    work = steady(acceptance, batch)
    records = run(policy(algorithm), work, batch, keep=True).records
    assert goodput(records[len(records) // 2 :]) >= 0.95 * best_arm(acceptance, batch)
    assert switches(records) <= 50.0


def test_all_beat_uniform_random_choice() -> None:
    work = texts(0.8, 12, seed=2)
    chance = run(UNIFORM, work).goodput
    for algorithm in ALGORITHMS:
        assert run(policy(algorithm), work).goodput > 1.05 * chance


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_where_off_is_right_it_is_off_for_more_than_95_percent(algorithm: str) -> None:
    """After 2,000 rounds, of a draft that is always wrong, in requests that come and go."""
    records = run(policy(algorithm), texts(0.0, 26, seed=3), keep=True).records
    late = records[2000:]
    assert len(late) > 1000
    assert np.mean([bool(r.drafted.any()) for r in late]) < 0.05
    assert switches(records) <= 50.0


@pytest.mark.parametrize("algorithm", ["ucb", "thompson", "exp3", "linucb"])
@pytest.mark.parametrize(("before", "after"), [(0.9, 0.0), (0.0, 0.9)])
def test_a_shift_within_one_long_request_is_followed(algorithm: str, before: float, after: float) -> None:
    """From 200 rounds after it on, near the arm that is right then."""
    first, second = texts(before, 1, 3000 if before else 800, 4)[0], texts(after, 1, 3000 if after else 700, 5)[0]
    both = Text(np.append(first.agrees, second.agrees), np.append(first.confidence, second.confidence))
    records = run(policy(algorithm), [both], keep=True).records
    shift = int(np.searchsorted(np.cumsum([r.emitted.sum() for r in records]), len(first.agrees)))
    late = records[shift + 200 :]
    assert len(late) > 200
    assert goodput(late) >= 0.9 * max(run_fixed(depth, [second]) for depth in TIERS)


def test_a_request_that_is_unlike_its_task_goes_by_its_own_record() -> None:
    """Every other request is hopeless: each single arm is wrong for half of them."""
    pairs = zip(texts(0.05, 7, 250, seed=8), texts(0.95, 7, 250, seed=9), strict=True)
    work = [text for pair in pairs for text in pair]
    best = max(run_fixed(depth, work) for depth in TIERS)
    assert run(HEADER + "  choose: {algorithm: thompson, scope: request}\n", work).goodput > 1.05 * best


def test_the_sliding_window_follows_too() -> None:
    work = texts(0.9, 8, seed=6) + texts(0.2, 8, seed=6)
    windowed = run(HEADER + "  choose: {algorithm: ucb, window: 150}\n", work).goodput
    assert windowed > max(run_fixed(depth, work) for depth in TIERS)


ARMS = "[{depth: 0}, {depth: 3, drafter: draft-model}, {depth: 1, drafter: ngram}, {depth: 7, drafter: ngram}]"
TWO = HEADER + "  choose: {algorithm: %s, scope: request, arms: " + ARMS + "}\n  drafters: [draft-model, ngram]\n"


@pytest.mark.parametrize("algorithm", ["ucb", "thompson"])
def test_lookup_is_found_where_it_pays(algorithm: str) -> None:
    """Every other request repeats itself: no single arm is right for both kinds."""
    tape = join([request(f"r{i}", 0.75, 0.92 if i % 2 else 0.1, 150, i) for i in range(12)])
    assert serve(TWO % algorithm, tape).goodput > best(tape, 1)


def test_a_policy_among_the_arms_sees_what_a_lookup_offers() -> None:
    """An arm that weighs offers is worth no less than served alone; text that repeats itself is looked up."""
    arms = (
        HEADER + "  choose: {algorithm: ucb, arms: [{policy: goodput}, {depth: 0}]}\n  drafters: [draft-model, ngram]\n"
    )
    tape = join([request(f"r{i}", 0.4, 0.98, 200, i) for i in range(6)])
    records = serve(arms, tape).records
    looked_up = sum(int((r.drafter[r.drafted > 0] == 1).sum()) for r in records)
    assert looked_up > 0.3 * len(records)
