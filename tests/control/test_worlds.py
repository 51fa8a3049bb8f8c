"""The default in simulated worlds: near the best fixed depth, follows shifts, never loses to off."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from adaptspec.types import Reason
from tests.control.simulator import (
    GOODPUT,
    HEADER,
    STATIC,
    Machine,
    Text,
    best_fixed,
    run,
    run_fixed,
    texts,
)

pytestmark = pytest.mark.whole

GUARDED = (
    HEADER
    + "  choose: {algorithm: static, depth: %d}\n"
    + "  guard: {never-slower: {margin: 0.03, window-rounds: 16, losing-windows: 2}}\n"
)
GPU = Machine((1, 17), (5.92, 6.26), step_ms=0.6, step_row_ms=0.002, catch_up_us=2.0, overhead_ms=1.2)


@pytest.mark.parametrize("acceptance", [0.3, 0.5, 0.7, 0.9, 0.97])
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_goodput_is_near_the_best_fixed_depth(batch: int, acceptance: float) -> None:
    """Started cold, on the same text, with no setting told which acceptance it will meet."""
    work = texts(acceptance, {1: 12, 4: 20, 16: 40}[batch], seed=1)
    assert run(GOODPUT, work, batch).goodput >= 0.95 * best_fixed(work, batch)


@pytest.mark.parametrize("acceptance", [0.5, 0.9])
def test_goodput_is_near_the_best_fixed_depth_with_a_large_target(acceptance: float) -> None:
    """The same with costs of an 8B model on a GPU, where verification is nearly free."""
    work = texts(acceptance, 12, seed=2)
    assert run(GOODPUT, work, 1, GPU).goodput >= 0.97 * best_fixed(work, 1, GPU)


@pytest.mark.parametrize(("batch", "requests"), [(1, 16), (4, 24), (16, 40)])
def test_a_draft_that_is_always_wrong_costs_under_3_percent(batch: int, requests: int) -> None:
    """Cold, over short requests, so that every catch-up and every first try is paid."""
    work = texts(0.0, requests, seed=3)
    assert run(GOODPUT, work, batch).goodput >= 0.97 * run_fixed(0, work, batch)


def test_a_draft_that_is_always_wrong_costs_under_3_percent_in_one_long_request() -> None:
    work = texts(0.0, 1, length=2000, seed=3)
    assert run(GOODPUT, work).goodput >= 0.97 * run_fixed(0, work)


@pytest.mark.parametrize("depth", [1, 3])
def test_the_guard_alone_bounds_the_loss_of_a_stubborn_algorithm(depth: int) -> None:
    """A fixed depth believes nothing and learns nothing: only measured goodput can stop it."""
    work = texts(0.0, 16, seed=4)
    assert run(GUARDED % depth, work).goodput >= 0.97 * run_fixed(0, work)


def test_the_guard_lets_a_depth_that_pays_alone() -> None:
    work = texts(0.8, 12, seed=5)
    guarded, free = run(GUARDED % 3, work), run(STATIC % 3, work)
    assert guarded.goodput >= 0.985 * free.goodput


def test_off_comes_back_after_a_shift() -> None:
    """First a draft that is always wrong, then one that is nearly always right: off must not be for ever."""
    work = texts(0.0, 8, seed=6) + texts(0.9, 8, seed=6)
    outcome = run(GOODPUT, work, keep=True)
    late = outcome.records[-100:]
    assert sum(bool(record.drafted.any()) for record in late) > 80
    assert outcome.goodput > 1.2 * best_fixed(work)


def test_off_comes_back_within_one_long_request() -> None:
    bad, good = texts(0.0, 1, length=1500, seed=7)[0], texts(0.95, 1, length=2500, seed=7)[0]
    both = Text(np.concatenate([bad.agrees, good.agrees]), np.concatenate([bad.confidence, good.confidence]))
    late = run(GOODPUT, [both], keep=True).records[-200:]
    assert sum(bool(record.drafted.any()) for record in late) > 160


def test_mixed_requests_get_depths_of_their_own() -> None:
    """Every other request is hopeless: each fixed depth is wrong for half of them."""
    work = [text for pair in zip(texts(0.1, 8, seed=8), texts(0.9, 8, seed=9), strict=True) for text in pair]
    for batch in (1, 4):
        assert run(GOODPUT, work, batch).goodput >= 0.99 * best_fixed(work, batch)


def test_no_oscillation_where_off_is_right() -> None:
    """Half its time on a depth that loses is what moving averages do here."""
    outcome = run(GOODPUT, texts(0.0, 16, seed=10), keep=True)
    drafting = [bool(record.drafted.any()) for record in outcome.records]
    assert sum(drafting) / len(drafting) < 0.05
    assert sum(a != b for a, b in pairwise(drafting)) < 100


@pytest.mark.parametrize("acceptance", [0.0, 0.9])
def test_hiccups_and_a_slow_spell_do_not_flip_decisions(acceptance: float) -> None:
    """Rounds that take 20 x, and 400 rounds at half speed: neither says anything about speculation."""
    work = texts(acceptance, 12, seed=11)

    def slow(number: int) -> float:
        return 20.0 if number % 97 == 0 else 2.0 if 200 < number < 600 else 1.0

    records = run(GOODPUT, work, slow=slow, keep=True).records
    reasons = Counter(int(reason) for record in records for reason in record.reasons)
    usual = Reason.OFF if acceptance == 0.0 else Reason.POLICY
    assert reasons[usual] + reasons[Reason.CEILING] > 0.95 * sum(reasons.values())


def test_a_wrong_profile_is_corrected_online() -> None:
    """Speculation was profiled 40 % too cheap: the guard and the table must find out."""
    machine = Machine()
    true = machine.profile()
    wrong = true.__class__(
        true.rows,
        true.tokens,
        tuple(tuple(s * (0.7 if j else 1.2) for j, s in enumerate(line)) for line in true.verify),
        {"draft-model": true.drafters["draft-model"].__class__((1,), (machine.step(1) * 0.5,), 0.0)},
    )
    work = texts(0.2, 16, seed=12)
    assert run(GOODPUT, work, profile=wrong).goodput >= 0.97 * run_fixed(0, work)
