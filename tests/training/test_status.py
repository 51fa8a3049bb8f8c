"""Progress has the remaining time, also where there is no terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from adaptspec.training.status import Status, duration


def test_lines_are_rare_and_have_the_remaining_time_of_this_part() -> None:
    """20 of 100 were done before; 20 more took 60 seconds, so 60 take 180."""
    times = iter([0.0, 1.0, 60.0, 61.0, 240.0])
    output = io.StringIO()
    with Status(Console(file=output), "answers", 100, 20, clock=lambda: next(times)) as status:
        for done, text in ((21, "fast"), (40, "fast"), (41, "fast"), (100, "")):
            status.update(done, text)
    assert output.getvalue().splitlines() == ["answers: 40%, fast, 3 min left", "answers: 100%, done in 4 min"]


def test_a_terminal_gets_a_bar() -> None:
    output = io.StringIO()
    with Status(Console(file=output, force_terminal=True, width=100), "training", 10) as status:
        status.update(5, "loss 2.000")
    assert "50 % loss 2.000" in output.getvalue()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "0 s"), (89.0, "89 s"), (91.0, "2 min"), (5_390.0, "1 h 30 min"), (61_200.0, "17 h 00 min")],
)
def test_durations_are_read_at_a_glance(seconds: float, words: str) -> None:
    assert duration(seconds) == words
