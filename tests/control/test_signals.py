"""Counts of acceptance: what a round teaches, what it does not, and how levels lean on each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.signals import AcceptanceSignals, SignalSettings

ROW = np.array([0])


def observe(signals: AcceptanceSignals, drafted: int, accepted: int, times: int = 1, row: int = 0) -> None:
    for _ in range(times):
        signals.observe(np.array([row]), np.array([drafted]), np.array([accepted]))


def test_starts_at_the_prior() -> None:
    signals = AcceptanceSignals(2, 1, 4, SignalSettings(prior_acceptance=0.7))
    assert signals.acceptance(np.array([0, 1])) == pytest.approx(np.full((2, 4), 0.7))


def test_a_round_says_nothing_of_positions_it_did_not_reach() -> None:
    """Drafted 4, kept 1: position 2 rejected, positions 3 and 4 unknown."""
    signals = AcceptanceSignals(1, 1, 4)
    observe(signals, 4, 1)
    assert signals.seen().tolist() == [1.0, 1.0, 0.0, 0.0]
    assert signals.rejections(ROW).tolist() == [1.0]


def test_shallow_rounds_raise_the_estimate_of_deep_positions() -> None:
    """A cautious prior for positions never reached would keep every chooser shallow for ever."""
    signals = AcceptanceSignals(1, 1, 7)
    observe(signals, 1, 1, 60)
    assert signals.acceptance(ROW)[0, 6] > 0.85


def test_rows_differ_and_new_requests_inherit_from_all_traffic() -> None:
    signals = AcceptanceSignals(3, 1, 3)
    for _ in range(60):
        signals.observe(np.array([0, 1]), np.array([1, 1]), np.array([1, 0]))
    good, bad, new = signals.acceptance(np.array([0, 1, 2]))[:, 0]
    assert good > 0.75
    assert bad < 0.25
    assert bad < new < good


def test_tasks_are_told_apart() -> None:
    signals = AcceptanceSignals(4, 3, 2)
    for row, task in enumerate((1, 2, 1, 2)):
        signals.start(row, task)
    for _ in range(80):
        signals.observe(np.array([0, 1]), np.array([1, 1]), np.array([1, 0]))
    fresh = signals.acceptance(np.array([2, 3]))[:, 0]
    assert fresh[0] > fresh[1] + 0.4


def test_a_row_that_fails_at_once_is_not_trusted_deeper() -> None:
    """Those that came as far elsewhere were the good ones."""
    signals = AcceptanceSignals(2, 1, 4)
    for _ in range(60):
        signals.observe(np.array([0, 1]), np.array([4, 1]), np.array([4, 0]))
    assert signals.acceptance(np.array([1]))[0, 1] < 0.75


def test_start_forgets_the_row() -> None:
    signals = AcceptanceSignals(2, 1, 2)
    observe(signals, 1, 0, 30)
    signals.start(0, 0)
    assert signals.acceptance(np.array([0])) == pytest.approx(signals.acceptance(np.array([1])))


@given(rounds=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_several_rounds_of_a_row_at_once_equal_them_one_by_one(rounds: list[tuple[int, int]]) -> None:
    """Without fading the two ways of learning are the same sum."""
    still = SignalSettings(row=1.0, task=1.0, everything=1.0)
    drafted = np.array([d for d, _ in rounds])
    accepted = np.array([min(d, a) for d, a in rounds])
    one, lot = AcceptanceSignals(1, 1, 4, still), AcceptanceSignals(1, 1, 4, still)
    for d, a in zip(drafted, accepted, strict=True):
        one.observe(ROW, np.array([d]), np.array([a]))
    lot.observe(np.zeros(len(rounds), dtype=np.int64), drafted, accepted)
    assert lot.seen() == pytest.approx(one.seen())
    assert lot.acceptance(ROW) == pytest.approx(one.acceptance(ROW))


@given(
    rounds=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40),
)
def test_estimates_are_probabilities(rounds: list[tuple[int, int]]) -> None:
    signals = AcceptanceSignals(1, 1, 5)
    for d, a in rounds:
        observe(signals, d, min(d, a))
    acceptance = signals.acceptance(ROW)
    assert ((acceptance > 0.0) & (acceptance < 1.0)).all()


def test_what_was_missed_teaches_at_once() -> None:
    """A stretch that went well while the row was off outweighs the rejections before it, in that row."""
    signals = AcceptanceSignals(2, 1, 5)
    rows = np.array([0, 1])
    for _ in range(30):
        signals.observe(rows, np.array([1, 1]), np.array([0, 0]))
    before = signals.acceptance(rows)
    signals.observe_missed(rows, np.array([64, 0]), np.array([60, 0]))
    after = signals.acceptance(rows)
    assert before[0].max() < 0.5
    assert after[0].min() > before[0].max() + 0.15
    assert after[1].max() < after[0].min()


@given(judged=st.integers(1, 64), share=st.floats(0, 1))
def test_missed_tokens_count_once_each(judged: int, share: float) -> None:
    """Accounting: so many positions reached, so many rejected."""
    agreed = int(share * judged)
    signals = AcceptanceSignals(1, 1, 5)
    signals.observe_missed(np.array([0]), np.array([judged]), np.array([agreed]))
    reached, rejected = signals.learned()[0].sum(axis=1)
    assert np.isclose(reached, judged)
    assert np.isclose(rejected, judged - agreed)
