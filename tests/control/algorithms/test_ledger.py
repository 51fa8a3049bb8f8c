"""The ledger: sums fade, add up and lean on the level above; what rounds tell of arms is right, and seconds add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.algorithms.ledger import CROSS, EARNED, SPENT, N, Played, Rewarder
from adaptspec.types import FloatArray, RoundRecord
from tests.control.algorithms.makers import ladder, ledger, played
from tests.control.helpers import record, table
from tests.trees import Grown, branching

OFF, ONE, THREE, SEVEN = range(4)


def told(earned: float, rounds: int = 8, rows: int = 1) -> FloatArray:
    """Rounds that are all alike, at all arms."""
    return np.tile(np.array([1.0, earned, 1.0]), (rounds, rows, 4, 1))


def at(*contexts: int) -> np.ndarray:
    return np.array(contexts, dtype=np.int64)


def test_rows_of_a_context_in_a_round_count_as_their_mean() -> None:
    """Two rows of one task and one of another; arm 1 was seen by one row only."""
    seen = np.zeros((1, 3, 4, 3))
    seen[0, :, 0] = [[1, 2, 1], [1, 4, 3], [1, 9, 1]]
    seen[0, 0, 1] = [1, 5, 2]
    lot = ledger("task").add(at(0, 0, 1), 0, seen)
    assert lot.contexts.tolist() == [0, 1]
    assert lot.sums[0, 0].tolist() == [1.0, 3.0, 2.0, 9.0, 6.0, 4.0]
    assert lot.sums[0, 1].tolist() == [1.0, 5.0, 2.0, 25.0, 10.0, 4.0]
    assert not lot.sums[1, 1].any()


def test_what_was_seen_fades_by_rounds() -> None:
    own = ledger("global", discount=0.9)
    for _ in range(2):
        own.add(at(0), 0, told(2.0))
    assert own.read(at(0), 0)[0, 0, EARNED] == pytest.approx(16.0 * (1.0 + 0.9**8))


def test_a_new_context_leans_on_the_level_above_by_a_bounded_weight() -> None:
    own = ledger("task")
    for _ in range(10):
        own.add(at(0), 0, told(2.0))
    new = own.read(at(1), 0)[0, 0]
    assert new[N] == pytest.approx(16.0)
    assert new[EARNED] / new[SPENT] == pytest.approx(2.0)
    assert new[CROSS] == pytest.approx(32.0)


def test_a_new_request_knows_its_task_and_not_the_rows_last_request() -> None:
    own = ledger("request")
    first = own.start(2)
    own.of(at(2), at(1))
    own.add(at(first), 0, told(2.0, 100))
    second = own.start(2)
    own.of(at(2), at(1))
    assert second != first
    assert own.read(at(first), 0)[0, 0, N] == pytest.approx(116.0)
    assert own.read(at(second), 0)[0, 0, N] == pytest.approx(16.0)
    assert set(own.learned()) == {"sums.all", "sums.task"}


def rewarder() -> Rewarder:
    return Rewarder(ladder(), table(), ("draft-model",))


def rewards(
    records: list[RoundRecord], arms: list[int], cache_gap: list[int] | None = None, *, alone: bool = True
) -> FloatArray:
    """[row-rounds, K, 3] of rows that always play the same arms."""
    found = rewarder().rewards(np.array(arms), len(arms), played(records, cache_gap, alone=alone))
    return found.reshape(-1, *found.shape[2:])


def test_a_row_at_off_spends_a_plain_share_whatever_others_draft() -> None:
    """Seconds of others' drafts are not its doing: by the table, off costs exactly 1."""
    made = record([0, 7], [0, 3])
    got = rewards([made], [OFF, SEVEN])
    plain = table().plain_seconds(2, 200)
    spent = got[1, SEVEN, 2]
    assert spent == pytest.approx((made.total_seconds / plain - 0.5) * 2, rel=1e-6)
    assert got[0, OFF].tolist() == [1.0, 0.0, 0.0]
    assert not got[0, ONE:].any()


@given(st.integers(0, 7))
@settings(max_examples=8, deadline=None)
def test_depth_seven_tells_what_shallower_rounds_would_have_been(accepted: int) -> None:
    """Against rounds that were really run at these depths on the same text."""
    deep = rewards([record([7], [accepted])], [SEVEN])[0]
    for arm, depth in ((ONE, 1), (THREE, 3)):
        run = rewards([record([depth], [min(accepted, depth)])], [arm])[0]
        assert deep[arm] == pytest.approx(run[arm], rel=1e-6)
    assert deep[OFF].tolist() == [0.0, 0.0, 0.0]


def test_deeper_arms_learn_nothing_from_a_shallow_round() -> None:
    got = rewards([record([1], [1])], [ONE])[0]
    assert got[:, 0].tolist() == [0.0, 1.0, 0.0, 0.0]


def test_a_guard_that_came_between_is_not_the_arms_doing() -> None:
    """Seven was wished for, and nothing or three was run: only what was run is credited."""
    off = rewards([record([0], [0])], [SEVEN])
    assert not off.any()
    cut = rewards([record([3], [3])], [SEVEN])[0]
    assert cut[:, 0].tolist() == [0.0, 1.0, 1.0, 0.0]


def test_drafts_deeper_than_the_arm_count_as_far_as_it_goes() -> None:
    """A host may draft alike for all rows: the arm earns what a round of its own depth would have."""
    deep = rewards([record([7], [5])], [ONE])[0]
    assert deep[ONE] == pytest.approx(rewards([record([1], [1])], [ONE])[0, ONE], rel=1e-6)
    assert not deep[THREE:].any()


def test_a_drafter_still_reading_says_nothing_of_its_drafts() -> None:
    made = record([0], [0], depths=[7])
    assert not rewards([made], [SEVEN], cache_gap=[2000]).any()
    # One that finds nothing to draft says a lot.
    assert rewards([made], [SEVEN], cache_gap=[0])[0, SEVEN].tolist()[:2] == [1.0, 1.0]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=6))
@settings(max_examples=20, deadline=None)
def test_attributed_seconds_add_up_to_the_round(draws: list[tuple[int, int]]) -> None:
    """Rows at off are worth 1 each; with those all seconds of the round are accounted for."""
    drafted = [0 if d == 0 else 7 for d, _ in draws]
    made = record(drafted, [min(a, d) for d, (_, a) in zip(drafted, draws, strict=True)])
    arms = [SEVEN if d else OFF for d in drafted]
    spent = rewards([made], arms)[:, SEVEN, 2]
    unit = table().plain_seconds(len(drafted), 100.0 * len(drafted)) / len(drafted)
    whole = unit * (spent.sum() + drafted.count(0))
    assert whole == pytest.approx(made.total_seconds, rel=0.12)
    if 0 not in drafted:
        assert whole == pytest.approx(made.total_seconds, rel=1e-6)


def test_a_hiccup_is_nobodys_fault_and_a_shared_round_is_priced_by_the_table() -> None:
    usual = rewards([record([3], [3])], [THREE])[0, THREE, 2]
    slow = rewards([record([3], [3], slower=50.0)], [THREE])[0, THREE, 2]
    assert slow == pytest.approx(2.0 * usual, rel=1e-6)
    shared = rewards([record([3], [3], slower=50.0)], [THREE], alone=False)[0, THREE, 2]
    assert shared == pytest.approx(usual, rel=1e-6)


def test_catching_up_is_the_price_of_entering_not_of_staying() -> None:
    plain, entering = record([3], [3]), record([3], [3])
    np.testing.assert_allclose(rewards([entering], [THREE], cache_gap=[1000]), rewards([plain], [THREE]))
    catch_up = rewarder().arm_costs(1, 100.0)[1]
    assert catch_up[OFF] == 0.0
    assert (catch_up[1:] > 0.0).all()
    assert catch_up[THREE] * table().plain_seconds(1, 100.0) == pytest.approx(
        table().catch_up_seconds("draft-model", 1)
    )


def test_arms_that_branch_pay_for_what_stands_beside() -> None:
    """A comb costs no more steps than its chain, and of its nodes what a shallower arm would have had verified."""
    own, arms = rewarder(), ladder()
    arm = int(np.flatnonzero(arms.depths == 3)[0])
    comb, chain = branching(Grown([-1, 0, 1, -1, -1, 1], 3)), record([3], [0])
    told = [
        own.rewards(np.array([arm]), 1, [Played(np.zeros(1, dtype=np.int64), alone=False, record=one)])
        for one in (comb, chain)
    ]
    plain = table().plain_seconds(1, 100.0)
    for depth, chains, nodes in ((1, 1, 3), (3, 3, 6)):
        (which,) = np.flatnonzero(arms.depths == depth)
        more = table().verify_seconds(1, 1 + nodes, 100.0) - table().verify_seconds(1, 1 + chains, 100.0)
        wide, narrow = (one[0, 0, which, 2] for one in told)
        assert wide - narrow == pytest.approx(more / plain)
        assert told[0][0, 0, which, 1] == told[1][0, 0, which, 1] == 1.0
