"""A decision serves as many steps as make it cheap, and no more."""

from __future__ import annotations

import math

import pytest

from adaptspec.control.own_time import OwnTime


def after(decisions: int, own: float, step: float) -> OwnTime:
    time = OwnTime()
    for _ in range(decisions):
        for what, seconds in (("decide", own / 2), ("learn", own / 2), ("step", step)):
            time.note(what, seconds)
    return time


@pytest.mark.parametrize(
    ("decisions", "own", "step", "steps"),
    [(300, 1e-4, 1e-2, 1), (300, 3e-4, 1e-2, 2), (300, 1e-3, 1e-2, 7), (300, 1e-2, 1e-2, 8), (40, 1e-2, 1e-2, 2)],
)
def test_how_many_steps(decisions: int, own: float, step: float, steps: int) -> None:
    """One where it is cheap, more where it is dear, eight at most, and few at first."""
    assert after(decisions, own, step).steps == steps


def test_what_is_no_time_or_a_stall() -> None:
    """Clocks that jump change nothing, and a stall counts as three times the usual at most."""
    time = after(300, 1e-4, 1e-2)
    for seconds in (math.nan, math.inf, -1.0, 1e3):
        time.note("decide", seconds)
    assert time.steps == 1
    assert OwnTime().steps == 1
