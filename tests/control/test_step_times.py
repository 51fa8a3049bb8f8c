"""What parts of a step take is found from whole steps, beside busy processes too."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.cost import CostTable
from adaptspec.control.host import DRAFTER, VLLM
from adaptspec.control.step_times import Step, StepTimes


def learned(noise: float, stalls: float, *, scale: float = 1.0, count: int = 600, seed: int = 0) -> StepTimes:
    """Steps of 1, 4 and 16 rows at depths that go round: 5 ms, 0.2 a row, 0.1 a drafted token, 0.8 a draft step."""
    rng, times, before = np.random.default_rng(seed), StepTimes(), 0
    for number in range(count):
        rows, depth = (1, 4, 16)[number // 40 % 3], (5, 0, 3, 1)[number % 4]
        step = Step(rows, before * rows, max(depth - 1, 0), rows, 40 if number % 50 == 0 else 0)
        seconds = (
            5e-3 + 2e-4 * rows + 1e-4 * step.verified + (8e-4 + 2e-5 * rows) * step.draft_steps + 1e-5 * step.prefill
        )
        stalled = rng.uniform(2.0, 5.0) if rng.random() < stalls else 1.0
        times.add(step, scale * seconds * rng.lognormal(0.0, noise) * stalled)
        before = depth
    times.settle()
    return times


@pytest.mark.parametrize(("noise", "stalls", "error"), [(0.02, 0.0, 0.05), (0.1, 0.05, 0.15)])
@pytest.mark.parametrize("scale", [1.0, 0.01, 100.0])
def test_parts_are_told_apart(noise: float, stalls: float, error: float, scale: float) -> None:
    """On machines of any speed, with one step in twenty several times as long."""
    times = learned(noise, stalls, scale=scale)
    for rows in (1, 16):
        assert times.draft_seconds(3, rows) == pytest.approx(3 * scale * (8e-4 + 2e-5 * rows), rel=2 * error)
    table = CostTable(times.profile(DRAFTER, 16, VLLM))
    for rows in (1, 4, 16):
        assert table.plain_seconds(rows) == pytest.approx(scale * (5e-3 + 2e-4 * rows), rel=error)
        verified = table.verify_seconds(rows, 4 * rows) - table.verify_seconds(rows, rows)
        assert verified == pytest.approx(scale * 3e-4 * rows, rel=0.2, abs=0.05 * scale * 5e-3)


def test_what_unlike_rows_took_once_is_not_held_for_ever() -> None:
    """They took a fifth longer for some time, so that nobody is cut; now they take nothing: that is found out."""
    rng, times, cuts = np.random.default_rng(0), StepTimes(), []
    for number in range(6000):
        cut = number % 3 == 0 if number < 600 else times.worth_cutting(5)
        cuts.append(cut)
        verified = (16, 48, 80)[number % 5 % 3]
        seconds = 5e-3 + 1e-4 * (verified - 5 * cut) + cut * 2e-3 * (number < 1200)
        times.add(Step(16, verified - 5 * cut, 1, 16, 0, cut), seconds * rng.lognormal(0.0, 0.02))
    assert sum(cuts[600:1200]) < 20
    assert sum(cuts[5000:]) > 900


@given(
    st.lists(
        st.tuples(
            st.integers(0, 300),
            st.integers(0, 2000),
            st.integers(0, 12),
            st.integers(0, 300),
            st.integers(0, 9000),
            st.booleans(),
            st.one_of(st.floats(allow_nan=True), st.floats(1e-6, 10.0)),
        ),
        max_size=80,
    )
)
def test_whatever_is_told_costs_are_times(told: list[tuple[int, int, int, int, int, bool, float]]) -> None:
    """Positive, finite, and a full cost table, for a clock that goes backwards too."""
    times = StepTimes()
    for *parts, seconds in told:
        times.add(Step(*parts), seconds)
    table = CostTable(times.profile(DRAFTER, 300, VLLM))
    assert 0.0 < table.plain_seconds(7) < math.inf
    assert 0.0 <= times.draft_seconds(5, 7) < math.inf
    assert 0.0 <= times.prefill_seconds(5) < math.inf
