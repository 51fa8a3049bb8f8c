"""Outlooks for choosers that have none: what they expect follows what was accepted and what it costs."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.control.stopping.outlook import OutlookKeeper
from tests.control.helpers import QUIET, record, signals, table


def keeper(rows: int = 2) -> OutlookKeeper:
    kept = OutlookKeeper(table(), "draft-model", rows, 1, 7)
    for row in range(rows):
        kept.start(row, 0)
    return kept


def test_acceptance_follows_what_was_seen() -> None:
    kept = keeper()
    before = kept.outlook(signals([7, 7])).acceptance
    for _ in range(48):
        kept.learn(record([4, 4], [4, 0]))
    after = kept.outlook(signals([7, 7])).acceptance
    assert before.shape == after.shape == (2, 7)
    assert after[0, 0] > before[0, 0] > after[1, 0]


def test_goodput_is_at_least_that_of_plain_decoding() -> None:
    """A draft that is always wrong is not worth weighing against: plain decoding is."""
    kept = keeper(1)
    for _ in range(200):
        kept.learn(record([7], [0]))
    outlook = kept.outlook(signals([7]))
    plain = 1.0 / table().plain_seconds(1, 100.0)
    assert plain <= outlook.goodput <= 1.1 * plain


def test_goodput_of_a_draft_that_is_always_right_is_that_of_the_deepest() -> None:
    kept = keeper(1)
    for _ in range(400):
        kept.learn(record([7], [7]))
    seconds = 7 * QUIET.step(1) + QUIET.verify(8) + QUIET.overhead_ms / 1e3
    assert kept.outlook(signals([7])).goodput == pytest.approx(8.0 / seconds, rel=0.15)


def test_it_serves_until_the_batch_changes_or_enough_was_seen() -> None:
    kept = keeper(3)
    first = kept.outlook(signals([7, 7]))
    kept.learn(record([1, 1], [1, 1]))
    assert kept.outlook(signals([7, 7])) is first
    assert kept.outlook(signals([7, 7], rows=[0, 2])) is not first
    second = kept.outlook(signals([7, 7]))
    for _ in range(16):
        kept.learn(record([1, 1], [1, 1]))
    assert kept.outlook(signals([7, 7])) is not second


def test_prices_are_the_cost_tables() -> None:
    outlook = keeper().outlook(signals([7, 7], beside=1))
    assert len(outlook.verify) == 2 * 7 + 1
    assert (np.diff(outlook.verify) >= 0.0).all()
    assert (outlook.per_step, outlook.per_row) == table().step_line("draft-model", 3)
