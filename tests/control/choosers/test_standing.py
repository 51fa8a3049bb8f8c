"""Rows that join a batch are judged as the joint plan would have judged them."""

from __future__ import annotations

import numpy as np

from adaptspec.control.choosers.goodput import Goodput
from adaptspec.types import Reason
from tests.control.helpers import record, signals, table


def joined(accepts: int) -> list[int]:
    """Depths of 16 rows, of which one has just come, after rounds in which `accepts` tokens of each were right."""
    made = Goodput(table(), 16, 1)
    for row in range(16):
        made.start(row, 0)
    for _ in range(40):
        depths = made.choose(signals([7] * 16)).depths.tolist()
        made.learn(record(depths, [min(d, accepts) for d in depths]))
    made.start(3, 0)
    choice = made.choose(signals([7] * 16))
    tried = choice.reasons == Reason.EXPLORE  # a row that is off may happen to be tried just now
    return [int(depth) for depth in np.where(tried, 0, choice.depths)]


def test_a_newcomer_does_as_its_likes_do() -> None:
    deep = joined(7)
    assert deep[3] == deep[0] > 0
    none = joined(0)
    assert none[3] == 0 == np.median(none)
