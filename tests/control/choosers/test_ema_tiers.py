"""SGLang's rule, move by move."""

from __future__ import annotations

import pytest

from adaptspec.control.choosers.ema_tiers import EmaTiers, Ladder
from adaptspec.errors import ConfigError
from adaptspec.types import Reason
from tests.control.helpers import record, signals


def depth(chooser: EmaTiers, size: int = 1) -> int:
    return int(chooser.choose(signals([16] * size)).depths[0])


def rounds(chooser: EmaTiers, count: int, accepted: int, size: int = 1) -> list[int]:
    seen = []
    for _ in range(count):
        tier = depth(chooser, size)
        seen.append(tier)
        chooser.learn(record([tier] * size, [min(tier, accepted)] * size))
    return seen


def test_starts_at_three_and_keeps_still_through_warm_up() -> None:
    assert rounds(EmaTiers(), 15, accepted=7) == [3] * 15


def test_climbs_when_all_is_accepted_and_falls_when_nothing_is() -> None:
    chooser = EmaTiers()
    assert rounds(chooser, 60, accepted=7)[-1] == 7
    assert rounds(chooser, 60, accepted=0)[-1] == 1


def test_moves_only_every_interval() -> None:
    tiers = rounds(EmaTiers(), 80, accepted=0)
    changes = [i for i in range(1, len(tiers)) if tiers[i] != tiers[i - 1]]
    assert changes
    assert all((i - 10) % 5 == 0 for i in changes)


def test_where_off_is_right_it_oscillates() -> None:
    """The known weakness of the rule, kept as it is: after each interval at 0 it tries again."""
    chooser = EmaTiers({1: Ladder((0, 1, 3))}, start=1)
    tiers = rounds(chooser, 200, accepted=0)[60:]
    assert 0.3 < sum(tier > 0 for tier in tiers) / len(tiers) < 0.7
    assert chooser.choose(signals([7])).reasons[0] in (Reason.POLICY, Reason.OFF)


def test_batch_sizes_have_ladders_of_their_own() -> None:
    chooser = EmaTiers()
    assert depth(chooser, 1) == 3
    assert depth(chooser, 8) == 3
    assert depth(chooser, 32) == 1
    assert depth(chooser, 64) == 0
    rounds(chooser, 60, accepted=7, size=1)
    assert depth(chooser, 1) == 7
    assert depth(chooser, 8) == 3


@pytest.mark.parametrize("ladders", [{}, {2: Ladder((1,))}, {1: Ladder(())}])
def test_ladders_must_cover_every_batch_size(ladders: dict[int, Ladder]) -> None:
    with pytest.raises(ConfigError):
        EmaTiers(ladders)
