"""The ledger: rewards that rounds give to arms, sums of contexts that fade and lean on wider ones, and estimates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.algorithms.arm_ledger import EARNED, SPENT, ArmEstimates, ArmLedger, N, RewardModel, Rewards
from adaptspec.control.algorithms.arms import Arms
from adaptspec.rounds import RoundRecord
from tests.control.algorithms.makers import OFF, ONE, SEVEN, THREE, TIERS, ledger, parts, played
from tests.control.helpers import caught_up, record, table, timed
from tests.trees import Grown, branching


def model() -> RewardModel:
    return RewardModel(Arms(TIERS), table(), ("draft-model",))


def rewards(made: RoundRecord, arms: list[int], cache_gap: list[int] | None = None, *, alone: bool = True) -> Rewards:
    """Rewards [B, K] of a round whose rows play these arms."""
    return Rewards(*(values[0] for values in model().rewards(played([made], arms, cache_gap=cache_gap, alone=alone))))


# Rewards


def test_a_row_at_off_spends_a_plain_share_whatever_others_draft() -> None:
    """Rows that draft pay for all that the round takes beyond a plain one."""
    made = record([0, 7], [0, 3])
    got = rewards(made, [OFF, SEVEN])
    beyond_plain = (made.timing.total / table().plain_seconds(2, 200) - 0.5) * 2
    assert got.spent[1, SEVEN] == pytest.approx(beyond_plain, rel=0.02)
    assert got.seen[0].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert not got.earned[0].any()


@given(st.integers(0, 7))
@settings(max_examples=8, deadline=None)
def test_depth_seven_shows_what_shallower_rounds_would_have_earned(accepted: int) -> None:
    """Compared with rounds of these depths on the same text."""
    deep = rewards(record([7], [accepted]), [SEVEN])
    for arm, depth in ((ONE, 1), (THREE, 3)):
        run = rewards(record([depth], [min(accepted, depth)]), [arm])
        assert deep.seen[0, arm] == run.seen[0, arm] == 1.0
        assert deep.earned[0, arm] == run.earned[0, arm] == min(accepted, depth) + 1
        assert deep.spent[0, arm] == pytest.approx(run.spent[0, arm], rel=0.02)
    assert deep.seen[0, OFF] == 0.0


def test_only_emitted_tokens_are_earned() -> None:
    """A request that ends within an accepted draft does not get the rest."""
    made = replace(record([7], [6]), emitted=np.array([2]))
    assert rewards(made, [SEVEN]).earned[0].tolist() == [0.0, 2.0, 2.0, 2.0]


def test_a_shallow_round_shows_no_deeper_arm() -> None:
    assert rewards(record([1], [1]), [ONE]).seen[0].tolist() == [0.0, 1.0, 0.0, 0.0]


def test_depths_that_a_guard_or_limit_lowered_are_not_credited() -> None:
    assert not rewards(record([0], [0]), [SEVEN]).seen.any()
    assert rewards(record([3], [3]), [SEVEN]).seen[0].tolist() == [0.0, 1.0, 1.0, 0.0]


def test_drafts_deeper_than_the_arm_count_up_to_its_depth() -> None:
    """A host may draft equally deep for all rows. The arm earns what a round of its depth would have earned."""
    deep, run = rewards(record([7], [5]), [ONE]), rewards(record([1], [1]), [ONE])
    assert deep.earned[0, ONE] == run.earned[0, ONE]
    assert deep.spent[0, ONE] == pytest.approx(run.spent[0, ONE], rel=0.02)
    assert not deep.seen[0, THREE:].any()


def test_a_drafter_that_still_catches_up_shows_nothing_of_its_drafts() -> None:
    made = record([0], [0], depths=[7])
    assert not rewards(made, [SEVEN], cache_gap=[2000]).seen.any()
    # A drafter that has caught up and finds nothing to draft shows a lot.
    idle = rewards(made, [SEVEN], cache_gap=[0])
    assert (idle.seen[0, SEVEN], idle.earned[0, SEVEN]) == (1.0, 1.0)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=6))
@settings(max_examples=20, deadline=None)
def test_attributed_seconds_add_up_to_the_round(draws: list[tuple[int, int]]) -> None:
    """With one plain share for each row at off."""
    drafted = [0 if depth == 0 else 7 for depth, _ in draws]
    made = record(drafted, [min(accepted, depth) for depth, (_, accepted) in zip(drafted, draws, strict=True)])
    spent = rewards(made, [SEVEN if depth else OFF for depth in drafted]).spent[:, SEVEN]
    unit = table().plain_seconds(len(drafted), 100.0 * len(drafted)) / len(drafted)
    whole = unit * (spent.sum() + drafted.count(0))
    assert whole == pytest.approx(made.timing.total, rel=0.12 if 0 in drafted else 1e-6)


def test_a_hiccup_counts_twice_at_most_and_a_shared_round_at_its_predicted_time() -> None:
    usual = rewards(record([3], [3]), [THREE]).spent[0, THREE]
    slow = record([3], [3], slower=50.0)
    assert rewards(slow, [THREE]).spent[0, THREE] == pytest.approx(2.0 * usual, rel=0.02)
    assert rewards(slow, [THREE], alone=False).spent[0, THREE] == pytest.approx(usual, rel=0.02)


def test_catching_up_costs_nothing_in_the_round_in_which_it_is_done() -> None:
    """It is charged on entry instead, where arms are compared."""
    usual = record([3], [3])
    longer = usual.timing.total + table().catch_up_seconds("draft-model", 1000.0)
    entering = timed(caught_up(usual, 1000), longer)
    np.testing.assert_allclose(rewards(entering, [THREE], [1000]).spent, rewards(usual, [THREE]).spent, rtol=0.02)
    costs = model().arm_costs(1, 100.0)
    assert costs.catch_up[OFF] == 0.0
    assert costs.catch_up[ONE:] * table().plain_seconds(1, 100.0) == pytest.approx(
        [table().catch_up_seconds("draft-model", 1.0)] * 3
    )


def test_branches_cost_what_verifying_their_nodes_takes() -> None:
    """A tree takes no more draft steps than its chain. A shallower arm pays for the nodes within its depth."""
    tree, chain = branching(Grown([-1, 0, 1, -1, -1, 1], 3)), record([3], [0])
    wide, narrow = (rewards(one, [THREE], alone=False) for one in (tree, chain))
    plain = table().plain_seconds(1, 100.0)
    for arm, tokens, nodes in ((ONE, 1, 3), (THREE, 3, 6)):
        more = table().verify_seconds(1, 1 + nodes, 100.0) - table().verify_seconds(1, 1 + tokens, 100.0)
        assert wide.spent[0, arm] - narrow.spent[0, arm] == pytest.approx(more / plain)
        assert wide.earned[0, arm] == narrow.earned[0, arm] == 1.0


# Sums


def add(book: ArmLedger, context: int, rounds: int = 8, accepted: int = 1) -> None:
    """Rounds of one row that drafts one token."""
    book.add(played([record([1], [accepted])] * rounds, [ONE], contexts=[context]))


def at(book: ArmLedger, context: int) -> ArmEstimates:
    return book.estimates(np.array([context]), 1, 100.0, np.zeros((1, 1)))


def test_rows_of_a_context_in_a_round_count_as_their_mean() -> None:
    """Two rows of one context, of which one drafts deeper, and a row of another context."""
    made = record([1, 3, 1], [1, 1, 0])
    book, rounds = ledger("task"), played([made], [ONE, THREE, ONE], contexts=[0, 0, 1])
    each = model().rewards(rounds)
    got = book.add(rounds)
    assert (got.contexts.tolist(), got.rounds) == ([0, 1], 1)
    assert got.sums[:, ONE, N].tolist() == [1.0, 1.0]
    assert got.sums[:, ONE, EARNED].tolist() == [2.0, 1.0]
    assert got.sums[0, ONE, SPENT] == pytest.approx(each.spent[0, :2, ONE].mean())
    assert got.sums[:, THREE, N].tolist() == [1.0, 0.0]


def test_sums_fade_by_rounds() -> None:
    book = ledger("global", discount=0.9)
    for _ in range(2):
        add(book, 0)
    assert at(book, 0).seen[0, ONE] == pytest.approx(8.0 * (1.0 + 0.9**8))


def test_batch_sizes_of_another_bucket_have_sums_of_their_own() -> None:
    book = ledger("global", rows=16)
    add(book, 0)
    assert book.estimates(np.array([0]), 2, 200.0, np.zeros((1, 1))).seen[0, ONE] == 0.0
    assert book.bucket(3) == book.bucket(4) != book.bucket(5)
    assert book.bucket(1000) == book.buckets - 1


def test_a_new_context_leans_on_the_wider_level_by_a_bounded_weight() -> None:
    book = ledger("task")
    for _ in range(10):
        add(book, 0)
    new, known = at(book, 1), at(book, 0)
    assert new.seen[0, ONE] == pytest.approx(16.0)
    assert known.seen[0, ONE] == pytest.approx(80.0 + 16.0)
    assert new.ratio[0, ONE] == pytest.approx(known.ratio[0, ONE], rel=0.02)


def test_a_new_request_knows_its_task_and_not_the_last_request_of_its_row() -> None:
    book, row = ledger("request"), np.array([2])
    first, second = book.start(2, 1), book.start(2, 2)
    assert first is not None
    assert second is not None
    assert book.contexts(row, np.array([1]), tasks=np.array([1])).tolist() == [first]
    add(book, first, 100)
    assert book.contexts(row, np.array([2]), tasks=np.array([1])).tolist() == [second]
    assert second != first
    assert at(book, first).seen[0, ONE] == pytest.approx(116.0)
    assert at(book, second).seen[0, ONE] == pytest.approx(16.0)
    assert set(book.learned()) == {"sums.all", "sums.task"}
    assert book.start(2, 3) == first
    assert at(book, first).seen[0, ONE] == pytest.approx(16.0)


def test_the_state_of_two_replicas_adds_up() -> None:
    """What each has seen without priors, so that sums of states are the state of all traffic."""
    one, other, both = (ledger("task") for _ in range(3))
    add(one, 0, 8)
    add(other, 1, 5, accepted=0)
    add(both, 0, 8)
    add(both, 1, 5, accepted=0)
    for name, sums in both.learned().items():
        np.testing.assert_allclose(one.learned()[name] + other.learned()[name], sums)


# Estimates


def test_off_is_exactly_one() -> None:
    book = ledger("global")
    book.add(played([record([0], [0])] * 5, [OFF]))
    got = at(book, 0)
    assert (got.ratio[0, OFF], got.error[0, OFF], got.seen[0, OFF], got.total[0]) == (1.0, 0.0, np.inf, 5.0)


def test_the_ratio_is_tokens_over_time_and_its_error_shrinks() -> None:
    book, made = ledger("global"), record([1], [1])
    add(book, 0, 10)
    few = at(book, 0)
    add(book, 0, 990)
    many = at(book, 0)
    assert many.ratio[0, ONE] == pytest.approx(2.0 * table().plain_seconds(1, 100.0) / made.timing.total, rel=0.01)
    assert many.error[0, ONE] < 0.2 * few.error[0, ONE]


def test_catching_up_lowers_what_a_lagging_drafter_is_worth() -> None:
    """Spread over 32 rounds, for arms that draft."""
    book = ledger("global")
    add(book, 0, 500)
    free = at(book, 0)
    lagging = book.estimates(np.array([0]), 1, 100.0, np.array([[2000.0]]))
    spent = record([1], [1]).timing.total
    entry = table().catch_up_seconds("draft-model", 2000.0) / 32.0
    assert lagging.ratio[0, ONE] == pytest.approx(free.ratio[0, ONE] * spent / (spent + entry), rel=0.01)
    assert lagging.ratio[0, OFF] == 1.0


def test_an_unseen_arm_is_expected_to_accept_as_the_shallower_arm_does() -> None:
    """If all or none of the tokens at depth 1 are accepted, so are those of depth 7."""
    right, wrong = ledger("global"), ledger("global")
    add(right, 0, 200, accepted=1)
    add(wrong, 0, 200, accepted=0)
    cost = model().arm_costs(1, 100.0).round[SEVEN]
    assert at(right, 0).ratio[0, SEVEN] > 7.5 / cost
    assert at(wrong, 0).ratio[0, SEVEN] < 1.1 / cost


def test_arms_of_each_drafter_cost_what_that_drafter_costs() -> None:
    arms = Arms([0, 3, 3], drafters=[0, 0, 1])
    both = parts(drafters=("draft-model", "ngram"))
    costs = RewardModel(arms, both.cost, both.drafters).arm_costs(1, 100.0)
    assert costs.round[0] == 1.0
    assert costs.round[1] > costs.round[2] > 1.0
    assert (costs.catch_up > 0.0).tolist() == [False, True, False]
