"""A fixed depth, vLLM's schedule by batch size, and SGLang's rule move by move."""

from __future__ import annotations

from adaptspec.control.algorithms.fixed_depths import BatchTable, EmaTiers, EmaTiersSpec, Static
from tests.control.helpers import record, signals


def ema(**settings: object) -> EmaTiers:
    return EmaTiers(EmaTiersSpec.model_validate({"algorithm": "ema-tiers", **settings}))


def depth(algorithm: EmaTiers, size: int = 1) -> int:
    return int(algorithm.choose(signals([16] * size)).depths[0])


def rounds(algorithm: EmaTiers, count: int, accepted: int, size: int = 1, others: int = 0) -> list[int]:
    """Depths of rounds with `size` rows and `others` of other policies; drafts are right up to `accepted` tokens."""
    depths = []
    for _ in range(count):
        choice = algorithm.choose(signals([16] * size, other_rows=others))
        tier = int(choice.depths[0])
        depths.append(tier)
        algorithm.learn(record([tier] * size, [min(tier, accepted)] * size), choice.memo)
    return depths


def test_a_fixed_depth_is_held_to_limits() -> None:
    assert Static(5).choose(signals([7, 2])).depths.tolist() == [5, 2]


def test_a_schedule_counts_rows_of_other_policies() -> None:
    assert BatchTable([[1, 2, 5], [3, 9, 1]]).choose(signals([7], other_rows=3)).depths.tolist() == [1]


def test_starts_at_three_and_keeps_still_through_warm_up() -> None:
    assert rounds(ema(), 15, accepted=7) == [3] * 15


def test_climbs_when_all_is_accepted_and_falls_when_nothing_is() -> None:
    algorithm = ema()
    assert rounds(algorithm, 60, accepted=7)[-1] == 7
    assert rounds(algorithm, 60, accepted=0)[-1] == 1


def test_off_is_left_for_one_interval_at_a_time() -> None:
    """It knows no costs, so wrong drafts are tried for half of the time."""
    algorithm = ema(interval=5, warmup=0, ladders={1: {"tiers": [0, 1]}})
    depths = rounds(algorithm, 40, accepted=0)
    assert depths[-20:].count(0) == depths[-20:].count(1) == 10


def test_rounds_at_off_leave_the_average_as_it_is() -> None:
    """0.2, 0.36, 0.488 and 0.59 after each round that drafts; above 0.5 it stays at depth 1."""
    algorithm = ema(alpha=0.2, warmup=0, interval=1, start=1, ladders={1: {"tiers": [0, 1]}})
    assert rounds(algorithm, 10, accepted=1) == [1, 0, 1, 0, 1, 0, 1, 1, 1, 1]


def test_batch_sizes_have_ladders_of_their_own() -> None:
    algorithm = ema()
    assert [depth(algorithm, size) for size in (1, 8, 32, 64)] == [3, 3, 1, 0]
    rounds(algorithm, 60, accepted=7, size=1)
    assert [depth(algorithm, size) for size in (1, 8)] == [7, 3]


def test_a_round_is_counted_for_the_ladder_that_decided_it() -> None:
    """Six rows that share rounds with four rows of other policies are on the ladder for eight rows and more."""
    algorithm = ema()
    assert rounds(algorithm, 60, accepted=0, size=6, others=4)[-1] <= 1
    assert depth(algorithm, 1) == 3


def test_a_late_round_is_counted_for_the_ladder_that_decided_it() -> None:
    algorithm = ema(ladders={1: {"tiers": [1, 3]}, 2: {"tiers": [1, 3]}})
    for _ in range(30):
        memos = [algorithm.choose(signals([16] * size)).memo for size in (1, 2)]
        for size, accepted, memo in ((1, 3, memos[0]), (2, 0, memos[1])):
            algorithm.learn(record([3] * size, [accepted] * size), memo)
    assert [depth(algorithm, size) for size in (1, 2)] == [3, 1]


def test_rounds_that_a_guard_decided_are_not_counted() -> None:
    algorithm = ema(warmup=0, interval=1)
    for _ in range(20):
        algorithm.learn(record([0], [0]))
    assert depth(algorithm) == 3
