"""SGLang's rule, move by move; a fixed depth, and vLLM's schedule format."""

from __future__ import annotations

from adaptspec.control.algorithms.depth_rules import BatchTable, EmaTiers, EmaTiersSpec
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


def test_batch_sizes_have_ladders_of_their_own() -> None:
    algorithm = ema({})
    assert depth(algorithm, 1) == 3
    assert depth(algorithm, 8) == 3
    assert depth(algorithm, 32) == 1
    assert depth(algorithm, 64) == 0
    rounds(algorithm, 60, accepted=7, size=1)
    assert depth(algorithm, 1) == 7
    assert depth(algorithm, 8) == 3


def test_rows_of_other_policies_count() -> None:
    assert BatchTable([[1, 2, 5], [3, 9, 1]]).choose(signals([7], beside=3)).depths.tolist() == [1]
