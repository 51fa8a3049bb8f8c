"""A fixed depth."""

from __future__ import annotations

from adaptspec.control.choosers.static import Static
from adaptspec.types import Reason
from tests.control.helpers import record, signals


def test_always_the_same_within_limits() -> None:
    chooser = Static(3)
    chooser.start(0)
    choice = chooser.choose(signals([7, 2, 0]))
    assert choice.depths.tolist() == [3, 2, 0]
    assert set(choice.reasons.tolist()) == {int(Reason.FIXED)}
    chooser.learn(record([3], [0]))
    chooser.finish(0)
    assert chooser.choose(signals([7])).depths.tolist() == [3]
