"""Rewards: off is 1, shallower depths are told exactly, nothing is credited that was not run, seconds add up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.bandits.arms import Arms
from adaptspec.control.bandits.notes import Note, Notes, Played, Rounds
from adaptspec.control.bandits.rewards import Rewarder
from adaptspec.types import FloatArray, RoundRecord
from tests.control.bandits.makers import ladder, rounds
from tests.control.helpers import record, table

OFF, ONE, THREE, SEVEN = range(4)


def rewarder() -> Rewarder:
    return Rewarder(ladder(), table(), ("draft-model",))


def test_a_row_at_off_spends_a_plain_share_whatever_others_draft() -> None:
    """Seconds of others' drafts are not its doing: by the table, off costs exactly 1."""
    made = record([0, 7], [0, 3])
    told = rewarder().rewards(rounds([made], [OFF, SEVEN]))
    plain = table().plain_seconds(2, 200)
    spent = told[1, SEVEN, 2]
    assert spent == pytest.approx((made.total_seconds / plain - 0.5) * 2, rel=1e-6)
    assert not told[0].any()


@given(st.integers(0, 7))
@settings(max_examples=8, deadline=None)
def test_depth_seven_tells_what_shallower_rounds_would_have_been(accepted: int) -> None:
    """Against rounds that were really run at these depths on the same text."""
    deep = rewarder().rewards(rounds([record([7], [accepted])], [SEVEN]))[0]
    for arm, depth in ((ONE, 1), (THREE, 3)):
        run = rewarder().rewards(rounds([record([depth], [min(accepted, depth)])], [arm]))[0]
        assert deep[arm] == pytest.approx(run[arm], rel=1e-6)
    assert deep[OFF].tolist() == [0.0, 0.0, 0.0]


def test_deeper_arms_learn_nothing_from_a_shallow_round() -> None:
    told = rewarder().rewards(rounds([record([1], [1])], [ONE]))[0]
    assert told[:, 0].tolist() == [0.0, 1.0, 0.0, 0.0]


def test_a_guard_that_came_between_is_not_the_arms_doing() -> None:
    """Seven was wished for, and nothing or three was run: only what was run is credited."""
    off = rewarder().rewards(rounds([record([0], [0])], [SEVEN]))
    assert not off.any()
    cut = rewarder().rewards(rounds([record([3], [3])], [SEVEN]))[0]
    assert cut[:, 0].tolist() == [0.0, 1.0, 1.0, 0.0]


def test_a_drafter_still_reading_says_nothing_of_its_drafts() -> None:
    made = record([0], [0], depths=[7])
    assert not rewarder().rewards(rounds([made], [SEVEN], lag=[2000])).any()
    # One that finds nothing to draft says a lot.
    assert rewarder().rewards(rounds([made], [SEVEN], lag=[0]))[0, SEVEN].tolist()[:2] == [1.0, 1.0]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=6))
@settings(max_examples=20, deadline=None)
def test_attributed_seconds_add_up_to_the_round(draws: list[tuple[int, int]]) -> None:
    """Rows at off are worth 1 each; with those all seconds of the round are accounted for."""
    drafted = [0 if d == 0 else 7 for d, _ in draws]
    made = record(drafted, [min(a, d) for d, (_, a) in zip(drafted, draws, strict=True)])
    arms = [SEVEN if d else OFF for d in drafted]
    spent = rewarder().rewards(rounds([made], arms))[:, SEVEN, 2]
    unit = table().plain_seconds(len(drafted), 100.0 * len(drafted)) / len(drafted)
    whole = unit * (spent.sum() + drafted.count(0))
    assert whole == pytest.approx(made.total_seconds, rel=0.12)
    if 0 not in drafted:
        assert whole == pytest.approx(made.total_seconds, rel=1e-6)


def test_a_hiccup_is_nobodys_fault_and_a_shared_round_is_priced_by_the_table() -> None:
    usual = rewarder().rewards(rounds([record([3], [3])], [THREE]))[0, THREE, 2]
    slow = rewarder().rewards(rounds([record([3], [3], slower=50.0)], [THREE]))[0, THREE, 2]
    assert slow == pytest.approx(2.0 * usual, rel=1e-6)
    shared = rewarder().rewards(rounds([record([3], [3], slower=50.0)], [THREE], alone=False))[0, THREE, 2]
    assert shared == pytest.approx(usual, rel=1e-6)


def test_catching_up_is_the_price_of_entering_not_of_staying() -> None:
    plain, entering = record([3], [3]), record([3], [3])
    late = rounds([entering], [THREE], lag=[1000])
    np.testing.assert_allclose(rewarder().rewards(late), rewarder().rewards(rounds([plain], [THREE])))
    catch_up = rewarder().catch_up(1, 100.0)
    assert catch_up[OFF] == 0.0
    assert (catch_up[1:] > 0.0).all()
    assert catch_up[THREE] * table().plain_seconds(1, 100.0) == pytest.approx(
        table().catch_up_seconds("draft-model", 1)
    )


def test_arm_costs_are_those_of_whole_rounds() -> None:
    costs = rewarder().arm_costs(4, 400.0)
    assert costs[OFF] == 1.0
    assert (np.diff(costs) > 0).all()
    want = table().round_seconds("draft-model", 4, np.array([3.0]), np.array([12.0]), 400.0)
    assert costs[THREE] == pytest.approx(want[0] / table().plain_seconds(4, 400.0))


LOOKUP = Arms([0, 1, 3, 1, 3], [0, 0, 0, 1, 1])
"""Off, two depths of the draft model, and two of the lookup."""


def scored(made: RoundRecord, arms: list[int], drafted: list[int], accepted: list[int]) -> tuple[Rounds, FloatArray]:
    """A round in which lookup, drafter 1, was scored; and what this tells."""
    notes, none = Notes(), np.full(len(drafted), -1)
    zeros = np.zeros(len(arms), dtype=np.int64)
    shadows = {"shadow": np.array([none, accepted]), "shadow_drafted": np.array([none, drafted])}
    played, shown = Played(zeros, zeros, np.array(arms), 0), replace(made, **shadows)
    notes.add(Note(played, made.depths, zeros, shown, len(arms), alone=True))
    told = Rewarder(LOOKUP, table(), ("draft-model", "ngram"))
    scores = notes.scores(1)
    assert scores is not None
    assert notes.scores(0) is None
    return notes.rounds(), told.scored(notes.rounds(), 1, scores)


@given(said=st.integers(0, 7), right=st.integers(0, 7))
@settings(max_examples=12, deadline=None)
def test_a_score_tells_what_a_round_of_the_drafter_would_have_been(said: int, right: int) -> None:
    """The draft model ran and four tokens came: depths up to four are as if lookup had been run at them."""
    right = min(said, right, 4)
    _, told = scored(record([3], [3]), [2], [said], [right])
    assert not told[0, :3].any()
    for arm, depth in ((3, 1), (4, 3)):
        drafted = min(said, depth)
        run = record([drafted], [min(right, drafted)], depths=[depth], drafter=[1])
        real = Rewarder(LOOKUP, table(), ("draft-model", "ngram")).rewards(rounds([run], [arm], alone=False))
        assert told[0, arm] == pytest.approx(real[0, arm], rel=1e-6)


def test_deeper_arms_are_told_of_by_no_score_not_even_a_bad_one() -> None:
    """One token came: whether the lookup's first was right says nothing fair of depth 3, which would only ever fail."""
    for right in (0, 1):
        _, told = scored(record([0], [0]), [0], [5], [right])
        assert told[0, :, 0].tolist() == [0.0, 0.0, 0.0, 1.0, 0.0]
        assert told[0, 3, 1] == right + 1


def test_rows_that_were_not_scored_tell_nothing() -> None:
    noted, told = scored(record([1, 0], [1, 0]), [3, 0], [-1, 2], [-1, 1])
    assert len(told) == 1
    assert len(noted.arms) == 2
