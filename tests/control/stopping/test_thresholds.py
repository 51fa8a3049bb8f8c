"""Thresholds on one number: who drafts on, and that a drafter which does not know the number is never stopped."""

from __future__ import annotations

import numpy as np

from adaptspec.control.choosers.chooser import Choice
from adaptspec.control.stopping.thresholds import ConfidenceStop, EntropyStop
from tests.control.stopping.asking import ask

CHOICE = Choice(np.full(3, 7), np.zeros(3, dtype=np.int64))


def test_confidence_below_the_threshold_stops() -> None:
    assert ask(ConfidenceStop(0.5).begin(CHOICE), [0.4, 0.6, float("nan")]) == [False, True, True]


def test_entropy_above_the_threshold_stops() -> None:
    nan = float("nan")
    assert ask(EntropyStop(1.0).begin(CHOICE), [0.0, 0.0, 0.0], entropy=[0.5, 1.5, nan]) == [True, False, True]
