"""No stop is no work: the engine is given nothing to ask."""

from __future__ import annotations

import numpy as np

from adaptspec.control.choosers.chooser import Choice
from adaptspec.control.stopping.stop import NoStop
from tests.control.helpers import record


def test_no_stop_costs_nothing_and_learns_nothing() -> None:
    rule = NoStop()
    assert rule.begin(Choice(np.full(1, 7), np.zeros(1, dtype=np.int64))) is None
    assert not rule.learns
    rule.learn(record([2], [1]))
