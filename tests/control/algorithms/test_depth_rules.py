"""SGLang's rule, move by move; a fixed depth, and vLLM's schedule format."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from adaptspec.control.algorithms.depth_rules import BatchTable, EmaTiers, EmaTiersSpec, Static
from adaptspec.types import Reason
from tests.control.helpers import record, signals


def ema(said: dict[str, object]) -> EmaTiers:
    return EmaTiers(EmaTiersSpec.model_validate({"algorithm": "ema-tiers", **said}))


def depth(algorithm: EmaTiers, size: int = 1) -> int:
    return int(algorithm.choose(signals([16] * size)).depths[0])


def rounds(algorithm: EmaTiers, count: int, accepted: int, size: int = 1) -> list[int]:
    seen = []
    for _ in range(count):
        tier = depth(algorithm, size)
        seen.append(tier)
        algorithm.learn(record([tier] * size, [min(tier, accepted)] * size))
    return seen


def test_starts_at_three_and_keeps_still_through_warm_up() -> None:
    assert rounds(ema({}), 15, accepted=7) == [3] * 15


def test_climbs_when_all_is_accepted_and_falls_when_nothing_is() -> None:
    algorithm = ema({})
    assert rounds(algorithm, 60, accepted=7)[-1] == 7
    assert rounds(algorithm, 60, accepted=0)[-1] == 1


def test_moves_only_every_interval() -> None:
    tiers = rounds(ema({}), 80, accepted=0)
    changes = [i for i in range(1, len(tiers)) if tiers[i] != tiers[i - 1]]
    assert changes
    assert all((i - 10) % 5 == 0 for i in changes)


def test_where_off_is_right_it_oscillates() -> None:
    """The known weakness of the rule, kept as it is: after each interval at 0 it tries again."""
    algorithm = ema({"ladders": {1: {"tiers": [0, 1, 3]}}, "start": 1})
    tiers = rounds(algorithm, 200, accepted=0)[60:]
    assert 0.3 < sum(tier > 0 for tier in tiers) / len(tiers) < 0.7
    assert algorithm.choose(signals([7])).reasons[0] in (Reason.POLICY, Reason.OFF)


def test_batch_sizes_have_ladders_of_their_own() -> None:
    algorithm = ema({})
    assert depth(algorithm, 1) == 3
    assert depth(algorithm, 8) == 3
    assert depth(algorithm, 32) == 1
    assert depth(algorithm, 64) == 0
    rounds(algorithm, 60, accepted=7, size=1)
    assert depth(algorithm, 1) == 7
    assert depth(algorithm, 8) == 3


@pytest.mark.parametrize("ladders", [{}, {2: {"tiers": [1]}}, {1: {"tiers": []}}])
def test_ladders_must_cover_every_batch_size(ladders: dict[int, object]) -> None:
    with pytest.raises(ValidationError):
        ema({"ladders": ladders})


def test_always_the_same_within_limits() -> None:
    algorithm = Static(3)
    algorithm.start(0)
    choice = algorithm.choose(signals([7, 2, 0]))
    assert choice.depths.tolist() == [3, 2, 0]
    assert set(choice.reasons.tolist()) == {int(Reason.FIXED)}
    algorithm.learn(record([3], [0]))
    algorithm.finish(0)
    assert algorithm.choose(signals([7])).depths.tolist() == [3]


@pytest.mark.parametrize(("size", "depth"), [(1, 5), (2, 5), (3, 5), (4, 3), (6, 3), (7, 0), (20, 0)])
def test_ranges_gaps_and_beyond(size: int, depth: int) -> None:
    """3 lies in a gap and takes the depth before it; 20 lies beyond the last range."""
    table = BatchTable([[1, 2, 5], [4, 6, 3], [7, 12, 0]])
    assert table.choose(signals([7] * size)).depths.tolist() == [depth] * size


def test_rows_of_other_policies_count() -> None:
    assert BatchTable([[1, 2, 5], [3, 9, 1]]).choose(signals([7], beside=3)).depths.tolist() == [1]
