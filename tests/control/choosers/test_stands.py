"""Choosers that let a choice stand keep their word: asked in each of these rounds, they would have chosen the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.choosers.chooser import Stands, TakesOffers
from adaptspec.control.choosers.goodput import Goodput
from adaptspec.control.choosers.hedge import Hedge
from adaptspec.control.choosers.lookup import LookupGoodput, LookupSettings
from adaptspec.control.choosers.slo import Slo, SloSettings
from tests.control.helpers import record, signals, table

ROWS, TASKS = 3, 2
LOOKUP = LookupSettings(1, 0)


def goodput() -> Goodput:
    return Goodput(table(), ROWS, TASKS)


MAKERS: list[Callable[[], Stands]] = [
    goodput,
    lambda: LookupGoodput(table(), ROWS, TASKS, LOOKUP, goodput()),
    lambda: Hedge(table(), ROWS, TASKS, LOOKUP, goodput()),
    lambda: Slo(table(), ROWS, TASKS, SloSettings(0.002)),
]


@pytest.mark.parametrize("make", MAKERS, ids=["goodput", "lookup", "hedge", "slo"])
@settings(max_examples=25, deadline=None)
@given(
    rights=st.lists(st.integers(0, 7), min_size=60, max_size=60),
    rows=st.integers(1, ROWS),
    restarts=st.sets(st.integers(0, 59), max_size=4),
)
def test_a_choice_that_stands_would_have_been_made_again(
    make: Callable[[], Stands], rights: list[int], rows: int, restarts: set[int]
) -> None:
    """Told of every round at once, and asked in every round, which is how the promise can be checked."""
    chooser, left, promised = make(), 0, []
    for row in range(rows):
        chooser.start(row, row % TASKS)
    for number, right in enumerate(rights):
        if number in restarts:
            chooser.finish(0)
            chooser.start(0, number % TASKS)
            left = 0
        choice = chooser.choose(signals([30] * rows))
        if left:
            assert choice.depths.tolist() == promised
        stands, left = chooser.stands(), left - 1
        if left <= 0:
            left, promised = stands, choice.depths.tolist()
        drafted = choice.depths.tolist()
        told = record(drafted, [min(right, depth) for depth in drafted])
        if isinstance(chooser, TakesOffers):
            chooser.scored(told)
        chooser.learn(told)


def test_a_row_that_is_off_is_tried_no_later_for_it() -> None:
    """Time for a try is saved up in rounds that nobody asked in, too."""
    asked, unasked = goodput(), goodput()
    for made in (asked, unasked):
        made.start(0, 0)
        for _ in range(60):
            choice = made.choose(signals([7]))
            drafted = choice.depths.tolist()
            made.learn(record(drafted, [0]))
    tried: list[list[int]] = [[], []]
    for found, made in zip(tried, (asked, unasked), strict=True):
        number = 0
        while number < 400:
            choice = made.choose(signals([7]))
            rounds = 1
            if made is unasked:
                rounds += made.stands()
                made.stood(rounds - 1)
            if choice.depths.any():
                found.append(number)
            for _ in range(rounds):
                made.learn(record(choice.depths.tolist(), [0]))
            number += rounds
    assert tried[0]
    assert tried[0] == tried[1]


def test_none_stand_while_a_try_is_under_way() -> None:
    made = goodput()
    made.start(0, 0)
    for _ in range(400):
        choice = made.choose(signals([7]))
        if made.trying:
            assert made.stands() == 0
            return
        made.learn(record(choice.depths.tolist(), [0]))
    pytest.fail("nothing was ever tried")
