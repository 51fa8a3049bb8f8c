"""Trials of what the estimates reject: a bounded share of the time, never prevented, and charged by the clock."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.explorer import DecidedAfter, Explorer, Trial
from tests.control.helpers import caught_up, record, timed

ROW = np.array([0])
NOTHING = np.zeros(1)


def with_budget(seconds: float, *kinds: str) -> Explorer:
    """An explorer whose budgets of these kinds hold so many seconds."""
    explorer = Explorer()
    for kind in kinds or ("draft",):
        explorer.affordable(kind, 1.0, 1e9, NOTHING, NOTHING)
    explorer.learn(timed(record([0], [0]), seconds / 0.02), None)
    return explorer


def trial(predicted: float, *, shared: bool = False) -> Trial:
    """A trial of one row in a round of a second, in which a token is worth a second."""
    return Trial("draft", ROW, shared, 1.0, 0.0, predicted, 0.0, np.ones(1))


def live(explorer: Explorer, rounds: int, cost: float, *, keeps: int = 0) -> list[bool]:
    """Rounds of one second in which one row could be tried at `cost` seconds; whether each round tried it.

    A trial takes what was predicted, and `keeps` of its single token are kept; a token is worth a second.
    """
    tried = []
    for _ in range(rounds):
        affords = (
            not explorer.decided_after and len(explorer.affordable("draft", 1.0, 0.0, np.array([cost]), NOTHING)) > 0
        )
        tried.append(affords)
        seconds, memo = 1.0, None
        if affords:
            memo = trial(1.0 + cost)
            explorer.open(memo)
            seconds += cost
        drafted = int(affords)
        explorer.learn(timed(record([drafted], [keeps * drafted]), seconds), memo)
    return tried


@settings(max_examples=15, deadline=None)
@given(cost=st.floats(0.01, 2.0))
def test_trials_in_vain_take_half_a_percent_of_the_time(cost: float) -> None:
    """A few rounds' time at first, and one trial more at most, as its loss is only saved to a multiple of it."""
    rounds = 3000
    lost = cost * sum(live(Explorer(), rounds, cost))
    assert lost <= 0.005 * rounds * 1.1 + 3.0 + 4.0 * max(cost, 0.25)


@pytest.mark.parametrize("cost", [1.0, 30.0])
def test_a_trial_is_never_too_dear(cost: float) -> None:
    """It runs when its predicted loss has been saved, and again after a trial in vain."""
    assert sum(live(Explorer(), int(3 * cost / 0.005), cost)) >= 2


def test_a_trial_that_pays_is_run_again_at_once() -> None:
    tried = live(Explorer(), 100, 0.5, keeps=1)
    assert all(tried[tried.index(True) :])


def test_a_trial_that_keeps_its_token_but_costs_more_is_in_vain() -> None:
    """A kept token that costs five is a loss of four."""
    rounds = 3000
    assert 4.0 * sum(live(Explorer(), rounds, 5.0, keeps=1)) <= 0.005 * rounds * 1.1 + 3.0 + 25.0


def test_rows_that_lose_least_are_tried_first() -> None:
    explorer = with_budget(3.0)
    each = np.array([2.0, 0.5, 1.0])
    assert explorer.affordable("draft", 1.0, 1.0, each, np.zeros(3)).tolist() == [1, 2]


def test_budgets_of_other_kinds_are_apart() -> None:
    explorer = with_budget(3.0, "draft", "size")
    live(explorer, 1, 2.9)
    assert not len(explorer.affordable("draft", 1.0, 2.9, NOTHING, NOTHING))
    assert len(explorer.affordable("size", 1.0, 2.9, NOTHING, NOTHING))


def test_a_trial_waits_for_its_own_round_and_for_no_other() -> None:
    """Rounds that were decided before it come first; when a later one comes, its own is lost."""
    explorer = Explorer()
    explorer.affordable("draft", 1.0, 0.5, NOTHING, NOTHING)
    explorer.open(trial(1.5))
    later = explorer.decided_after
    for earlier in (None, trial(1.5), DecidedAfter(trial(1.5))):
        explorer.learn(record([0], [0]), earlier)
        assert explorer.decided_after is later
    explorer.learn(record([0], [0]), later)
    assert explorer.decided_after is None


def test_a_trial_that_has_only_read_so_far_goes_on() -> None:
    """Reading takes several rounds: what is left to read is affordable, as all of it was."""
    explorer = Explorer()
    live(explorer, 400, 1e9)
    for left in (3.0, 2.0, 1.0):
        assert len(explorer.affordable("draft", 1.0, 0.2, np.array([left]), NOTHING))
        reads = trial(1.2 + left)
        explorer.open(reads)
        reading = timed(caught_up(record([0], [0], depths=[1]), 512), 2.0)
        explorer.learn(reading, reads)
    assert len(explorer.affordable("draft", 1.0, 0.2, NOTHING, NOTHING))


def test_reading_answers_has_a_budget_of_its_own() -> None:
    """In a long answer an idle drafter misses more with every round: half a percent of the time goes into that."""
    affords = []
    for missed, answers in ((0.7, 0.0), (0.0, 0.7)):
        explorer = with_budget(3.0)
        affords.append(len(explorer.affordable("draft", 1.0, 2.9, np.array([missed]), np.array([answers]))) > 0)
    assert affords == [False, True]


def test_a_stall_is_not_charged_to_a_trial() -> None:
    """A round that took a hundred times as long counts as twice its prediction: the next trial is no later."""
    waits = []
    for seconds in (3.0, 150.0):
        explorer = Explorer()
        explorer.affordable("draft", 1.0, 0.5, NOTHING, NOTHING)
        stalls = trial(1.5)
        explorer.open(stalls)
        explorer.learn(timed(record([1], [0]), seconds), stalls)
        waits.append(live(explorer, 2000, 0.5).index(True))
    assert waits[1] <= waits[0]


@pytest.mark.parametrize("shared", [False, True])
def test_the_time_of_prompts_is_not_charged_to_a_trial(shared: bool) -> None:
    """A round that also reads a prompt takes two seconds more: a trial that pays still pays."""
    explorer = with_budget(2.0)
    explorer.affordable("draft", 1.0, 0.5, NOTHING, NOTHING)
    pays = trial(1.5, shared=shared)
    explorer.open(pays)
    explorer.learn(timed(record([1], [1]), 2.9), pays)
    assert (len(explorer.affordable("draft", 1.0, 2.0, NOTHING, NOTHING)) > 0) == shared
