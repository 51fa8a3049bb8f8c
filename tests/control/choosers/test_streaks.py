"""How often a lookup is right: learned by streaks, within bounds, the same one row at a time and all at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.choosers.streaks import Streaks
from adaptspec.types import FloatArray
from tests.fakes import array

# Row, tokens proposed (-1: nobody looked), and how many of them were right at most.
ROUNDS = st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 5), st.integers(0, 5)), max_size=60)
BATCHES = st.lists(st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 5)), min_size=3, max_size=3), max_size=30)


def started(rows: int = 3, tasks: int = 2, depth: int = 5) -> Streaks:
    made = Streaks(rows, tasks, depth)
    for row in range(rows):
        made.start(row, row % tasks)
    return made


def gains_of(made: Streaks, *rows: int) -> FloatArray:
    """By what is known of their kinds."""
    gains: FloatArray = made.gains_of_kinds()[made.kinds(array(*rows))]
    return gains


def told(made: Streaks, rounds: list[tuple[int, int, int]]) -> Streaks:
    for row, drafted, right in rounds:
        made.observe_one(row, drafted, min(right, drafted))
    return made


@settings(max_examples=40, deadline=None)
@given(ROUNDS)
def test_expected_tokens_rise_with_depth_by_less_and_less(rounds: list[tuple[int, int, int]]) -> None:
    """A draft of d tokens keeps between 0 and d of them, and each position adds at most what the one before did."""
    gains = gains_of(told(started(), rounds), 0, 1, 2)
    each = np.diff(gains, axis=1, prepend=0.0)
    assert (each > 0.0).all()
    assert (each < 1.0).all()
    assert (np.diff(each, axis=1) <= 1e-12).all()


@settings(max_examples=40, deadline=None)
@given(ROUNDS)
def test_one_row_at_a_time_is_the_same_as_in_arrays(rounds: list[tuple[int, int, int]]) -> None:
    one, many = told(started(), rounds), started()
    for row, drafted, right in rounds:
        many.observe(array(row), array(drafted), array(min(right, drafted)))
    for row in range(3):
        one.gains_of_kinds()
        assert one.gains_of_one(row) == gains_of(many, row)[0].tolist()
    assert np.array_equal(one.learned(), many.learned())


@settings(max_examples=60, deadline=None)
@given(BATCHES)
def test_rows_of_a_batch_are_followed_apart(batches: list[list[tuple[int, int]]]) -> None:
    one, many = started(), started()
    for batch in batches:
        for row, (drafted, right) in enumerate(batch):
            one.observe_one(row, drafted, min(right, drafted))
        many.observe(array(0, 1, 2), array(*(d for d, _ in batch)), array(*(min(r, d) for d, r in batch)))
        assert one.kinds(array(0, 1, 2)).tolist() == many.kinds(array(0, 1, 2)).tolist()
    assert np.allclose(one.learned(), many.learned())


@settings(max_examples=60, deadline=None)
@given(BATCHES, st.sets(st.integers(0, 29)), st.sets(st.integers(0, 29)))
def test_what_was_looked_up_serves_once(batches: list[list[tuple[int, int]]], asked: set[int], began: set[int]) -> None:
    """The same rows stand in one array for as long as nobody comes or goes; a request may begin after they were asked

    about.
    """
    one, many, rows = started(), started(), array(0, 1, 2)
    for i, batch in enumerate(batches):
        if i in asked:
            many.kinds(rows)
        if i in began:
            one.start(1, 0)
            many.start(1, 0)
        for row, (drafted, right) in enumerate(batch):
            one.observe_one(row, drafted, min(right, drafted))
        many.observe(rows, array(*(d for d, _ in batch)), array(*(min(r, d) for d, r in batch)))
        assert one.kinds(array(0, 1, 2)).tolist() == many.kinds(array(0, 1, 2)).tolist()
    assert np.allclose(one.learned(), many.learned())


@settings(max_examples=40, deadline=None)
@given(ROUNDS)
def test_what_lies_behind_a_wrong_token_is_not_counted(rounds: list[tuple[int, int, int]]) -> None:
    """A draft tells of its right tokens and of the first wrong one, of all traffic and of its task alike."""
    made = told(started(), rounds)
    made.gains_of_one(0)
    tried = sum(min(min(right, drafted) + 1, drafted) for _, drafted, right in rounds if drafted > 0)
    right = sum(min(right, drafted) for _, drafted, right in rounds if drafted > 0)
    counts = told(started(), rounds).learned()
    assert counts[1:].sum() <= tried + right + 1e-9
    assert (counts[:, 1] <= counts[:, 0] + 1e-9).all()
    assert counts[0].sum() <= counts[1:].sum() + 1e-9  # the counts of all traffic fade with each task's


def test_a_row_in_the_middle_of_a_repetition_is_trusted() -> None:
    made = started()
    before = made.gains_of_one(0)
    for _ in range(4):
        made.observe_one(0, 5, 5)
    assert made.gains_of_one(0)[-1] > before[-1]
    made.observe_one(0, 5, 2)
    assert made.gains_of_one(0)[0] < 0.9


def test_a_new_request_starts_without_a_streak() -> None:
    """What its predecessor repeated is not its own; what the task learned stays."""
    made = told(started(), [(0, 5, 5)] * 4)
    trusted = made.gains_of_one(0)
    made.start(0, 0)
    assert made.gains_of_one(0)[0] < trusted[0]


def test_lookups_that_are_always_wrong_lose_all_trust_and_win_it_back() -> None:
    made = told(started(), [(0, 1, 0)] * 400)
    low = made.gains_of_one(0)[0]
    told(made, [(0, 1, 1)] * 3000)
    made.start(0, 0)
    assert low < 0.1
    assert made.gains_of_one(0)[0] > low


def test_tasks_are_told_apart() -> None:
    """Without a streak, the lookup is always right for one task, never for the other."""
    made = told(started(), [(0, 1, 0), (1, 2, 1)] * 200)
    assert made.gains_of_one(0)[0] < 0.3 < made.gains_of_one(1)[0]


def test_a_streak_outlives_rounds_without_a_proposal_but_not_rounds_in_which_nobody_looked() -> None:
    made = told(started(), [(0, 3, 3)])
    before = made.gains_of_one(0)
    made.observe_one(0, 0, 0)
    assert made.gains_of_one(0) == before
    made.observe_one(0, -1, -1)
    assert made.gains_of_one(0)[0] < before[0]


def test_states_of_two_replicas_add_up() -> None:
    """Counts, no rates and no prior: their sum is what both have seen."""
    one, two = told(started(), [(0, 3, 3)] * 40), told(started(), [(1, 3, 0)] * 40)
    for made in (one, two):
        made.gains_of_one(0)
    both = started()
    both.restore(one.learned() + two.learned())
    assert np.array_equal(both.learned(), one.learned() + two.learned())
    assert both.gains_of_one(1)[0] < both.gains_of_one(0)[0]
