"""Weighing what a lookup offers against the draft model's plan, and what is learned of either."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.choosers.goodput import Goodput, GoodputSettings
from adaptspec.control.choosers.lookup import LookupGoodput, LookupSettings
from adaptspec.errors import StateError
from adaptspec.types import Reason, RoundRecord
from tests.control.helpers import hear, record, signals, table
from tests.fakes import array

MODEL, LOOKUP = 0, 1
TIERS = (1, 2, 3, 4, 5, 6, 7)


def chooser(rows: int = 4, tiers: tuple[int, ...] = TIERS, tryouts: float = 0.0) -> LookupGoodput:
    """With a draft model first and the lookup second."""
    cost = table()
    planner = Goodput(cost, rows, 1, GoodputSettings(tiers, tryouts=tryouts))
    made = LookupGoodput(cost, rows, 1, LookupSettings(LOOKUP, MODEL, tiers), planner)
    for row in range(rows):
        made.start(row, 0)
    return made


def alone(rows: int = 4) -> LookupGoodput:
    """Without a draft model."""
    made = LookupGoodput(table(), rows, 1, LookupSettings(1, None))
    for row in range(rows):
        made.start(row, 0)
    return made


def scored(found: list[int], right: list[int], depths: list[int] | None = None) -> RoundRecord:
    """A round in which the model drafted to these depths, and kept nothing, and the lookup was scored."""
    own = [0] * len(found) if depths is None else depths
    shadow = np.array([[-1] * len(found), right])
    return replace(record(own, [0] * len(found)), shadow=shadow, shadow_drafted=np.array([[-1] * len(found), found]))


def taught(made: LookupGoodput, right: int, rows: int, rounds: int = 60) -> LookupGoodput:
    """The lookup offered 5 tokens to each row in each round, so many of them right; the model got nothing."""
    for _ in range(rounds):
        hear(made, scored([5] * rows, [right] * rows, [1] * rows))
    return made


@pytest.mark.parametrize("rows", [1, 4])
def test_sure_offers_are_taken_and_the_others_follow_the_plan(rows: int) -> None:
    made = taught(chooser(), 5, rows)
    choice = made.choose(signals([7] * rows, offered=[7] + [0] * (rows - 1)))
    assert choice.drafter is not None
    assert choice.drafter.tolist() == [LOOKUP] + [MODEL] * (rows - 1)
    assert choice.depths[0] > 0


@pytest.mark.parametrize("rows", [1, 4])
def test_offers_that_are_always_wrong_are_left(rows: int) -> None:
    made = taught(chooser(), 0, rows, 300)
    choice = made.choose(signals([7] * rows, offered=[7] * rows))
    assert choice.drafter is None or not (choice.drafter == LOOKUP).any()


@pytest.mark.parametrize("rows", [1, 4, 40])
def test_what_is_learned_between_two_choices_counts_in_the_second(rows: int) -> None:
    """Also where many rows are sorted out by what was found a few rounds ago."""
    made, asked = taught(chooser(rows), 5, rows), signals([7] * rows, offered=[7] * rows)
    for _ in range(3):
        choice = made.choose(asked)
        assert choice.drafter is not None
        assert (choice.drafter == LOOKUP).all()
    taught(made, 0, rows, 300)
    choice = made.choose(asked)
    assert choice.drafter is None or not (choice.drafter == LOOKUP).any()


def test_an_offer_is_weighed_anew_where_others_share_the_round() -> None:
    """A token more costs every row of the round its time: what paid alone need not pay beside fifteen others."""
    made, fresh = (taught(alone(), 3, 1) for _ in range(2))
    made.choose(signals([7], offered=[7]))
    beside = signals([7], offered=[7], beside=15)
    again, anew = made.choose(beside), fresh.choose(beside)
    assert again.depths.tolist() == anew.depths.tolist()
    assert again.expected is not None
    assert anew.expected is not None
    assert again.expected.goodput == pytest.approx(anew.expected.goodput)


@pytest.mark.parametrize("rows", [2, 40])
def test_what_is_expected_of_a_batch_does_not_change_when_it_is_asked_for_later(rows: int) -> None:
    """A journal reads it rounds after the decision; by then other rows sit there, and more was learned."""
    twins = [taught(chooser(rows), 3, rows) for _ in range(2)]
    asked = signals([7] * rows, offered=[7] + [3] * (rows - 1))
    at_once, later = (made.choose(asked).expected for made in twins)
    assert at_once is not None
    told = at_once.goodput, at_once.accepted.tolist()
    for row in range(rows):
        twins[1].finish(row)
        twins[1].start(row, 0)
    taught(twins[1], 0, rows, 40)
    twins[1].choose(signals([7] * rows, offered=[7] * rows))
    assert later is not None
    assert (later.goodput, later.accepted.tolist()) == told


@pytest.mark.parametrize("made", [chooser(), alone()])
def test_without_an_offer_it_is_the_plan(made: LookupGoodput) -> None:
    """What the lookup has not found costs nothing: depths are those of the planner, or none."""
    plan = made.choose(signals([7, 7]))
    again = made.choose(signals([7, 7], offered=[0, 0]))
    assert plan.depths.tolist() == again.depths.tolist()
    assert (plan.drafter is None) == (again.drafter is None)


def test_without_a_draft_model_offers_are_weighed_against_plain_decoding() -> None:
    made = taught(alone(), 5, 4)
    assert made.choose(signals([7] * 4, offered=[7, 0, 0, 7])).depths.tolist() == [7, 0, 0, 7]
    off = made.choose(signals([7] * 4))
    assert off.depths.tolist() == [0] * 4
    assert set(off.reasons.tolist()) == {Reason.OFF}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4),
    st.integers(0, 5),
    st.sampled_from([TIERS, (1, 3, 7), (2,)]),
)
def test_depths_stay_within_limits_offers_and_tiers(
    rows: list[tuple[int, int]], right: int, tiers: tuple[int, ...]
) -> None:
    """However sure it is: an offer is never taken beyond what was found."""
    made = taught(chooser(tiers=tiers), right, len(rows), 8)
    limits, offered = [limit for limit, _ in rows], [min(limit, offer) for limit, offer in rows]
    choice = made.choose(signals(limits, offered=offered))
    which = np.zeros(len(rows)) if choice.drafter is None else choice.drafter
    assert (choice.depths <= array(*limits)).all()
    taken = (which == LOOKUP) & (choice.depths > 0)
    assert (choice.depths[taken] <= array(*offered)[taken]).all()
    assert set(choice.depths[taken].tolist()) <= set(tiers)


def test_a_round_of_the_lookup_teaches_the_lookup_and_not_the_model() -> None:
    """Or the model would seem as good as the text that it never had to draft."""
    made = chooser()
    before = made.learned()
    hear(made, record([5], [5], drafter=[LOOKUP]))
    after = made.learned()
    assert after["offers"].sum() > before["offers"].sum()
    assert np.array_equal(after["acceptance"], before["acceptance"])


@pytest.mark.parametrize("rows", [1, 3])
def test_what_an_offer_brings_ends_with_the_request(rows: int) -> None:
    """All five were right, but the text ended with the second: one more than plain decoding would have had."""
    whole, cut = chooser(), chooser()
    told = record([5] * rows, [5] * rows, drafter=[LOOKUP] * rows)
    hear(whole, told)
    hear(cut, replace(told, emitted=np.full(rows, 2)))
    tried, right = (made.learned()["offers"][0].sum(axis=1) for made in (whole, cut))
    assert tried.tolist() == [5 * rows, 5 * rows]
    assert right.tolist() == [2 * rows, rows]


def test_a_round_of_the_model_teaches_both() -> None:
    made = chooser()
    hear(made, scored([3], [2], [2]))
    learned = made.learned()
    assert learned["acceptance"].sum() > 0.0
    assert learned["offers"].sum() > 0.0


@pytest.mark.parametrize("make", [chooser, alone])
def test_what_it_learned_can_be_restored_and_added(make: type) -> None:
    """State of two replicas, name by name, is the state of both."""
    one, two, both = taught(make(), 5, 1), taught(make(), 0, 1), make()
    sums = {name: values + two.learned()[name] for name, values in one.learned().items()}
    both.restore(sums)
    for name, values in both.learned().items():
        assert np.allclose(values, sums[name]), name
    fresh = make()
    fresh.restore(one.learned())
    asked = signals([7], offered=[7])
    one.start(0, 0)
    fresh.start(0, 0)
    assert fresh.choose(asked).depths.tolist() == one.choose(asked).depths.tolist()


@pytest.mark.parametrize("make", [chooser, alone])
def test_state_of_another_shape_changes_nothing(make: type) -> None:
    made = taught(make(), 5, 1)
    before = made.learned()
    with pytest.raises(StateError):
        made.restore({**before, "offers": before["offers"][:, :, 1:]})
    assert all(np.array_equal(values, before[name]) for name, values in made.learned().items())


def test_a_model_without_depths_leaves_all_to_plain_decoding() -> None:
    made = LookupGoodput(table(), 1, 1, LookupSettings(LOOKUP, None, ()))
    made.start(0, 0)
    assert not made.watches_offers
    assert made.choose(signals([7], offered=[7])).depths.tolist() == [0]


def test_a_try_of_the_draft_model_is_not_given_up_for_an_offer() -> None:
    """It has been paid for by then: off would come back too late."""
    made = taught(chooser(tryouts=0.01), 3, 1, 80)
    tries = 0
    for _ in range(600):
        choice = made.choose(signals([7], offered=[7]))
        if choice.reasons[0] == Reason.EXPLORE:
            tries += 1
            assert choice.drafter is None or choice.drafter[0] == MODEL
        hear(made, scored([5], [5], choice.depths.tolist()))
    assert tries
