"""Tries of what is off: bounded in time, never starved, and not given up half-way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from adaptspec.control.algorithms.algorithm import Choice
from adaptspec.control.algorithms.exploration import Exploration, ExplorationBudget
from adaptspec.control.algorithms.goodput import Goodput, GoodputSettings
from adaptspec.control.cost import CostTable
from adaptspec.control.policy import Union
from adaptspec.types import Reason
from tests.control.helpers import QUIET, record, signals, table

ROW = np.array([0])


def live(budget: ExplorationBudget, rounds: int, cost: float, accepts: int = 0) -> list[bool]:
    """Rounds of one second, of one row that is off; whether each tried."""
    seen = []
    for _ in range(rounds):
        who = np.zeros(0)
        if budget.possible(cost):
            who = budget.begin(ROW, cost, np.zeros(1))
        tried = len(who) > 0
        seen.append(tried)
        budget.note(1.0, 1.0, 0 if tried else 1)
        if tried:
            budget.won(replace(record([1], [accepts]), total_seconds=1.0 + cost), ROW, cost, 1.0)
    return seen


def test_tries_take_their_share_of_time_at_most() -> None:
    for cost in (0.3, 1.0, 10.0, 100.0):
        spent = cost * sum(live(ExplorationBudget(0.01), 10_000, cost))
        assert spent <= 0.01 * 10_000 + cost


def test_what_is_believed_too_dear_is_tried_all_the_same() -> None:
    """A hundred plain rounds for one token: no budget reaches that, and one try would tell."""
    assert any(live(ExplorationBudget(0.01), 200, 100.0))


def test_rows_that_win_go_on() -> None:
    """What a try wins is there for the next."""
    budget = ExplorationBudget(0.01)
    seen = live(budget, 400, 0.5, accepts=1)
    first = seen.index(True)
    assert all(seen[first : first + 20])


def test_rows_that_win_less_than_they_cost_do_not_go_on_for_ever() -> None:
    """Each of their tokens is kept, and each costs five."""
    spent = sum(live(ExplorationBudget(0.01), 10_000, 5.0, accepts=1)) * 4.0
    assert spent <= 0.01 * 10_000 + 2 * 5.0


def exploring(rows: int = 2) -> tuple[Exploration, Callable[[Choice], Choice]]:
    """What tries the model of goodput, and its choice in the coming round for one that was planned."""
    made, cost = Goodput(table(), rows, 1), table()
    exploration, numbers = Exploration(0.01, cost, {0: "draft-model"}, (1, 3)), count(1)

    def tried(choice: Choice) -> Choice:
        seen = replace(signals([7] * len(choice.depths)), number=next(numbers))
        terms = made.terms(seen)
        assert terms is not None
        return exploration.explored(choice, terms, (), seen)

    return exploration, tried


def off(rows: int = 1) -> Choice:
    return Choice(np.zeros(rows, dtype=np.int64), np.full(rows, int(Reason.OFF)))


@pytest.mark.parametrize("rounds", [1, 64])
def test_each_round_pays_for_tries_and_is_waited_for(rounds: int) -> None:
    exploration, tried = exploring()
    terms = Goodput(table(), 2, 1).terms(signals([7]))
    assert terms is not None
    for _ in range(rounds):
        exploration.learn(record([0], [0]), terms)
    assert (tried(off()).reasons[0] == Reason.EXPLORE) == (rounds == 64)


def test_a_try_that_only_read_goes_on_reading() -> None:
    budget = ExplorationBudget(0.01)
    budget.note(1000.0, 1.0, 100)
    assert len(budget.begin(ROW, 0.5, np.array([2.0])))
    assert not budget.won(replace(record([0], [0], depths=[1]), caught_up=512), ROW, 3.5, 1.0)
    assert budget.possible(100.0)
    assert len(budget.begin(ROW, 0.5, np.array([2.0])))


def test_a_try_leaves_others_what_drafts_beside_them() -> None:
    """One row is off and tried; the other keeps the model-free nodes beside its own."""
    exploration, tried = exploring()
    terms = Goodput(table(), 2, 1).terms(signals([7, 7]))
    assert terms is not None
    for _ in range(1000):
        exploration.learn(record([0, 0], [0, 0]), terms)
    beside = Union(np.array([1, 0]), np.array([3, 0]))
    found = tried(Choice(np.array([2, 0]), np.array([int(Reason.POLICY), int(Reason.OFF)]), union=beside))
    assert found.reasons.tolist() == [Reason.POLICY, Reason.EXPLORE]
    assert found.union is beside


def test_a_try_is_paid_for_once() -> None:
    """Rounds that were decided without asking follow it, as where a guard switches off: then it tries again."""
    made = Goodput(table(), 1, 1)
    made.start(0)
    while (choice := made.choose(signals([7]))).reasons[0] != int(Reason.EXPLORE):
        made.learn(record([choice.depths.item()], [0]))
    for depth in (1, *[0] * 500):
        made.learn(record([depth], [0]))
    assert made.choose(signals([7])).reasons[0] == Reason.EXPLORE


@pytest.mark.parametrize("together", [True, False])
def test_other_depths_are_timed_now_and_then_where_rounds_are_only_timed_whole(together: bool) -> None:
    """One less deep and one deeper in turn, of those allowed; elsewhere the parts of any round tell."""
    profile = QUIET.profile()
    drafts = {name: replace(cost, together=together) for name, cost in profile.drafters.items()}
    settings = GoodputSettings(tiers=(1, 3, 5), stops=False)
    made = Goodput(CostTable(replace(profile, drafters=drafts)), 2, 1, settings)
    usual, beside = set(), set()
    for number in range(1, 129):
        now = signals([5, 5])
        now.number = number
        choice = made.choose(now)
        explored = bool((choice.reasons == int(Reason.EXPLORE)).any())
        (beside if explored else usual).update(choice.depths.tolist())
        drafted = choice.depths.tolist()
        made.learn(replace(record(drafted, [min(2, depth) for depth in drafted]), decision=number))
    assert usual <= {3}
    assert beside == ({1, 5} if together else set())
