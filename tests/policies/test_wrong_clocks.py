"""A wrong cost table, noise, stalls and a machine that slows down cost the default policy little."""

from __future__ import annotations

import numpy as np
import pytest

from tests.policies.wrong_clocks import draw, summary

# Draws, and the least share of the goodput with a true table: where drafting pays, and where drafts are wrong.
SHORT = {7: 0.97, 8: 0.97, 12: 0.97}


@pytest.mark.whole
@pytest.mark.parametrize("number", SHORT)
def test_a_wrong_clock_costs_little(number: int) -> None:
    """In one world: next to the same policy with a true table, and next to plain decoding."""
    run = draw("goodput", number)
    assert run.over_true >= SHORT[number], run
    assert run.over_off >= 0.97, run


@pytest.mark.nightly
def test_wrong_clocks_cost_little_on_average() -> None:
    """In two dozen worlds."""
    runs = [draw("goodput", number) for number in range(24)]
    assert np.median([run.over_true for run in runs]) >= 0.98, summary(runs)
    assert min(run.over_true for run in runs) >= 0.9, summary(runs)
    assert min(run.over_off for run in runs) >= 0.88, summary(runs)
