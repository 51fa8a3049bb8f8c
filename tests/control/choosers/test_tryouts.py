"""The allowance bounds what trying again may cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.choosers.tryouts import Allowance

PLAIN, COST = 1.0, 0.8


def spend(allowance: Allowance, rounds: int, worth: float) -> int:
    tries = 0
    for _ in range(rounds):
        allowance.earn(PLAIN)
        if allowance.affords(COST):
            allowance.settle(COST, worth)
            tries += 1
    return tries


def test_failures_cost_at_most_the_share() -> None:
    tries = spend(Allowance(0.01), 10_000, worth=0.0)
    assert tries >= 10
    assert tries * COST <= 0.01 * 10_000 * PLAIN + PLAIN


def test_success_pays_for_the_next_try() -> None:
    assert spend(Allowance(0.01), 100, worth=1.0) == 100


def test_a_new_request_helps_and_nothing_is_hoarded() -> None:
    fresh = Allowance(0.01)
    fresh.earn(PLAIN)
    fresh.settle(1.0, 0.0)
    for _ in range(4):
        fresh.grant(PLAIN, rows=1)
    assert fresh.affords(COST)
    for _ in range(10_000):
        fresh.grant(PLAIN, rows=1)
    assert not fresh.affords(5.0)


def test_new_requests_help_less_where_tries_fail() -> None:
    """Short requests that come one after another would else be tried as often as each other hopeless one was."""
    allowance = Allowance(0.01)
    allowance.earn(PLAIN)
    tries = 0
    for _ in range(400):
        allowance.grant(PLAIN, rows=1)
        if allowance.affords(COST):
            allowance.settle(COST, 0.0)
            tries += 1
    assert 20 <= tries <= 50


def test_tries_that_lose_on_average_get_rare_though_more_of_them_succeed() -> None:
    """Three of five are worth a quarter more than they cost, the others nothing: a fifth of the time is lost."""
    allowance = Allowance(0.01)
    tries = 0
    for _ in range(4000):
        allowance.grant(PLAIN, rows=4)
        allowance.earn(PLAIN)
        if allowance.affords(COST):
            allowance.settle(COST, PLAIN if tries % 5 < 3 else 0.0)
            tries += 1
    assert 100 <= tries <= 500


def test_no_share_no_tries() -> None:
    assert spend(Allowance(0.0), 1000, worth=1.0) == 0


def test_cheap_tries_rest_between_failures() -> None:
    """Time alone would allow a try of hardly any cost in every round; a success ends the rest."""
    cheap = Allowance(0.02, rest=28)
    tries = 0
    for _ in range(2000):
        cheap.earn(PLAIN)
        if cheap.affords(0.001 * PLAIN):
            tries += 1
            cheap.settle(0.001 * PLAIN, 0.0)
    assert 40 <= tries < 0.05 * 2000
    for _ in range(100):
        cheap.earn(PLAIN)
    cheap.settle(0.001 * PLAIN, PLAIN)
    assert cheap.affords(0.001 * PLAIN)


@given(st.floats(0.001, 0.2), st.integers(0, 40), st.lists(st.booleans(), max_size=6), st.floats(0.05, 2.5))
def test_it_says_in_how_many_rounds_a_try_can_be_made(
    share: float, rest: int, outcomes: list[bool], cost: float
) -> None:
    """Not one sooner, and not one later."""
    allowance = Allowance(share, rest)
    allowance.earn(PLAIN)
    for good in outcomes:
        allowance.settle(COST, 2.0 * COST if good else 0.0)
    rounds = allowance.rounds_until(cost, PLAIN)
    if rounds > 1:
        allowance.earn(PLAIN, rounds - 1)
        assert not allowance.affords(cost + 1e-9)
        allowance.earn(PLAIN)
    elif rounds:
        allowance.earn(PLAIN)
    assert allowance.affords(cost - 1e-9)


def test_what_can_never_be_saved_up_is_far_away() -> None:
    for allowance, cost in ((Allowance(0.01), 3.1), (Allowance(0.0), 0.1)):
        allowance.earn(PLAIN)
        assert allowance.rounds_until(cost * PLAIN, PLAIN) > 10**6
