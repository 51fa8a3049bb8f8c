"""Switches are counted within requests, and predictions beside what came."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.telemetry.choices import Choices, Predictions
from adaptspec.types import Expected
from tests.control.helpers import record

ROUNDS = st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=3, max_size=3), max_size=12)


@settings(max_examples=60, deadline=None)
@given(ROUNDS, st.integers(1, 5))
def test_switches_are_counted_per_request_whatever_the_lots(rounds: list[list[tuple[int, int]]], lot: int) -> None:
    """A change of depth between two rounds of a request; of the drafter, between two that draft."""
    records = [
        replace(record([d for d, _ in one], [0] * 3), drafter=np.array([which for _, which in one])) for one in rounds
    ]
    choices = Choices(3, 2)
    for start in range(0, len(records), lot):
        part = records[start : start + lot]
        choices.add(part, np.tile(np.arange(3), len(part)))
    columns = list(zip(*rounds, strict=True))
    changes = [sum(a[0] != b[0] for a, b in itertools.pairwise(column)) for column in columns]
    assert choices.depth_switches == sum(changes)
    used = [[which for depth, which in column if depth] for column in columns]
    assert choices.drafter_switches == sum(sum(a != b for a, b in itertools.pairwise(u)) for u in used)
    assert choices.drafts.tolist() == [sum(u.count(which) for u in used) for which in (0, 1)]


def test_a_request_begins_without_a_past() -> None:
    choices = Choices(1, 1)
    choices.add([record([3], [0])], np.array([0]))
    choices.start(0)
    choices.add([record([1], [0])], np.array([0]))
    assert choices.depth_switches == 0


def test_predictions_are_held_against_what_came() -> None:
    """Goodput over the time rounds took, where one was named and no prompt was read; tokens by row."""
    one = record([3, 0], [2, 0])
    told = replace(one, expected=Expected(2000.0, np.array([1.5, np.nan])))
    predictions = Predictions()
    predictions.add([one, told, replace(told, prefill_tokens=7), replace(told, expected=Expected(np.nan, np.zeros(2)))])
    found = predictions.calibration
    assert found.predicted_tokens == 2000.0 * one.total_seconds
    assert (found.realised_tokens, found.realised_accepted) == (4, 6)
    assert found.predicted_accepted == 3.0
    assert found.goodput_ratio == found.predicted_tokens / 4
    assert found.accepted_ratio == 0.5


def test_tokens_beyond_the_end_did_not_come_true() -> None:
    """Verification kept three of which the client got one: a prediction of one was right."""
    one = replace(record([3], [3]), emitted=np.array([1]), expected=Expected(2000.0, np.array([1.0])))
    predictions = Predictions()
    predictions.add([one])
    assert predictions.calibration.realised_accepted == 1
    assert predictions.calibration.accepted_ratio == 1.0
