"""Rewards: off is 1, shallower depths are told exactly, nothing is credited that was not run, seconds add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.bandits.rewards import Rewarder
from adaptspec.types import FloatArray, RoundRecord
from tests.control.bandits.makers import ladder, notes
from tests.control.helpers import record, table

OFF, ONE, THREE, SEVEN = range(4)


def rewarder() -> Rewarder:
    return Rewarder(ladder(), table(), ("draft-model",))


def told(
    records: list[RoundRecord], arms: list[int], lag: list[int] | None = None, *, alone: bool = True
) -> FloatArray:
    """[row-rounds, K, 3] of rows that always play the same arms."""
    found = rewarder().rewards(np.array(arms), len(arms), notes(records, lag, alone=alone))
    return found.reshape(-1, *found.shape[2:])


def test_a_row_at_off_spends_a_plain_share_whatever_others_draft() -> None:
    """Seconds of others' drafts are not its doing: by the table, off costs exactly 1."""
    made = record([0, 7], [0, 3])
    got = told([made], [OFF, SEVEN])
    plain = table().plain_seconds(2, 200)
    spent = got[1, SEVEN, 2]
    assert spent == pytest.approx((made.total_seconds / plain - 0.5) * 2, rel=1e-6)
    assert got[0, OFF].tolist() == [1.0, 0.0, 0.0]
    assert not got[0, ONE:].any()


@given(st.integers(0, 7))
@settings(max_examples=8, deadline=None)
def test_depth_seven_tells_what_shallower_rounds_would_have_been(accepted: int) -> None:
    """Against rounds that were really run at these depths on the same text."""
    deep = told([record([7], [accepted])], [SEVEN])[0]
    for arm, depth in ((ONE, 1), (THREE, 3)):
        run = told([record([depth], [min(accepted, depth)])], [arm])[0]
        assert deep[arm] == pytest.approx(run[arm], rel=1e-6)
    assert deep[OFF].tolist() == [0.0, 0.0, 0.0]


def test_deeper_arms_learn_nothing_from_a_shallow_round() -> None:
    got = told([record([1], [1])], [ONE])[0]
    assert got[:, 0].tolist() == [0.0, 1.0, 0.0, 0.0]


def test_a_guard_that_came_between_is_not_the_arms_doing() -> None:
    """Seven was wished for, and nothing or three was run: only what was run is credited."""
    off = told([record([0], [0])], [SEVEN])
    assert not off.any()
    cut = told([record([3], [3])], [SEVEN])[0]
    assert cut[:, 0].tolist() == [0.0, 1.0, 1.0, 0.0]


def test_a_drafter_still_reading_says_nothing_of_its_drafts() -> None:
    made = record([0], [0], depths=[7])
    assert not told([made], [SEVEN], lag=[2000]).any()
    # One that finds nothing to draft says a lot.
    assert told([made], [SEVEN], lag=[0])[0, SEVEN].tolist()[:2] == [1.0, 1.0]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=6))
@settings(max_examples=20, deadline=None)
def test_attributed_seconds_add_up_to_the_round(draws: list[tuple[int, int]]) -> None:
    """Rows at off are worth 1 each; with those all seconds of the round are accounted for."""
    drafted = [0 if d == 0 else 7 for d, _ in draws]
    made = record(drafted, [min(a, d) for d, (_, a) in zip(drafted, draws, strict=True)])
    arms = [SEVEN if d else OFF for d in drafted]
    spent = told([made], arms)[:, SEVEN, 2]
    unit = table().plain_seconds(len(drafted), 100.0 * len(drafted)) / len(drafted)
    whole = unit * (spent.sum() + drafted.count(0))
    assert whole == pytest.approx(made.total_seconds, rel=0.12)
    if 0 not in drafted:
        assert whole == pytest.approx(made.total_seconds, rel=1e-6)


def test_a_hiccup_is_nobodys_fault_and_a_shared_round_is_priced_by_the_table() -> None:
    usual = told([record([3], [3])], [THREE])[0, THREE, 2]
    slow = told([record([3], [3], slower=50.0)], [THREE])[0, THREE, 2]
    assert slow == pytest.approx(2.0 * usual, rel=1e-6)
    shared = told([record([3], [3], slower=50.0)], [THREE], alone=False)[0, THREE, 2]
    assert shared == pytest.approx(usual, rel=1e-6)


def test_catching_up_is_the_price_of_entering_not_of_staying() -> None:
    plain, entering = record([3], [3]), record([3], [3])
    np.testing.assert_allclose(told([entering], [THREE], lag=[1000]), told([plain], [THREE]))
    catch_up = rewarder().arm_costs(1, 100.0)[1]
    assert catch_up[OFF] == 0.0
    assert (catch_up[1:] > 0.0).all()
    assert catch_up[THREE] * table().plain_seconds(1, 100.0) == pytest.approx(
        table().catch_up_seconds("draft-model", 1)
    )


def test_arm_costs_are_those_of_whole_rounds() -> None:
    costs, _ = rewarder().arm_costs(4, 400.0)
    assert costs[OFF] == 1.0
    assert (np.diff(costs) > 0).all()
    want = table().round_seconds("draft-model", 4, np.array([3.0]), np.array([12.0]), 400.0)
    assert costs[THREE] == pytest.approx(want[0] / table().plain_seconds(4, 400.0))
