"""The ledger: sums fade, add up, lean on the level above, and drop what a shift made untrue."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.control.bandits.ledger import CROSS, EARNED, SPENT, Ledger, Ledgers, Lot, Memory, N, lot_of
from adaptspec.errors import StateError


def lot(earned: float, *contexts: int, spent: float = 1.0, rounds: int = 8, arms: int = 2) -> Lot:
    """Rounds that are all alike, at all arms and in all of the contexts (none named: the first)."""
    one = np.array([1.0, earned, spent, earned**2, earned * spent, spent**2])
    count = max(1, len(contexts))
    sums = np.tile(one * rounds, (count, arms, 1))
    return Lot(np.array(contexts or (0,)), np.zeros(count, dtype=np.int64), np.full(count, float(rounds)), sums)


def test_rows_of_a_context_in_a_round_count_as_their_mean() -> None:
    """Two rows in round 0, one in round 1; arm 1 was seen by one row only."""
    seen = np.zeros((3, 2, 3))
    seen[:, 0] = [[1, 2, 1], [1, 4, 3], [1, 1, 1]]
    seen[0, 1] = [1, 5, 2]
    got = lot_of(seen, np.array([0, 0, 1]), np.zeros((1, 3), dtype=np.int64), np.zeros(3, dtype=np.int64))
    assert got.rounds.tolist() == [2.0]
    assert got.sums[0, 0].tolist() == [2.0, 4.0, 3.0, 10.0, 7.0, 5.0]
    assert got.sums[0, 1].tolist() == [1.0, 5.0, 2.0, 25.0, 10.0, 4.0]


def test_contexts_and_buckets_are_kept_apart() -> None:
    seen = np.ones((4, 1, 3))
    got = lot_of(seen, np.array([0, 0, 1, 1]), np.array([[3, 5, 3, 3]]), np.array([0, 0, 1, 1]))
    assert list(zip(got.contexts.tolist(), got.buckets.tolist(), strict=True)) == [(3, 0), (3, 1), (5, 0)]
    assert got.sums[:, 0, N].tolist() == [1.0, 1.0, 1.0]


def test_each_level_has_its_own_sums_of_the_same_rounds() -> None:
    """Two rows of different contexts: their mean on the first level, each for itself below, which begins at 1."""
    seen = np.array([[[1.0, 2.0, 1.0]], [[1.0, 4.0, 1.0]]])
    got = lot_of(seen, np.zeros(2, dtype=np.int64), np.array([[0, 0], [3, 1]]), np.zeros(2, dtype=np.int64))
    assert got.contexts.tolist() == [0, 1, 3]
    assert got.sums[:, 0, EARNED].tolist() == [3.0, 4.0, 2.0]
    assert got.since(1).contexts.tolist() == [0, 2]
    assert got.since(1).sums[:, 0, EARNED].tolist() == [4.0, 2.0]


def test_what_was_seen_fades_by_rounds() -> None:
    ledger = Ledger(1, 1, 2, Memory(discount=0.9))
    ledger.add(lot(2.0))
    ledger.add(lot(2.0))
    assert ledger.read(np.array([0]), 0)[0, 0, EARNED] == pytest.approx(16.0 * (1.0 + 0.9**8))


def test_a_window_forgets_wholly() -> None:
    ledger = Ledger(1, 1, 2, Memory(window=64))
    for _ in range(40):
        ledger.add(lot(2.0))
    assert 56.0 <= ledger.read(np.array([0]), 0)[0, 0, N] <= 64.0
    for _ in range(9):
        ledger.add(lot(2.2))
    got = ledger.read(np.array([0]), 0)[0, 0]
    assert got[EARNED] / got[N] == pytest.approx(2.2)


def test_a_shift_is_believed_at_once_and_drift_is_not_a_shift() -> None:
    ledger = Ledger(1, 1, 2, Memory(discount=1.0))
    for _ in range(10):
        assert not ledger.add(lot(2.0)).any()
    assert not ledger.add(lot(2.2)).any()
    assert ledger.add(lot(1.0)).all()
    got = ledger.read(np.array([0]), 0)[0, 0]
    assert got[EARNED] / got[SPENT] < 1.75


def test_states_of_replicas_add() -> None:
    def one(*values: float) -> Ledgers:
        ledgers = Ledgers({"all": 1, "task": 2}, 1, 2, Memory(discount=1.0), 16.0)
        for value in values:
            ledgers.add(lot(value, 0, 2))
        return ledgers

    left, right, both = one(1.0, 1.1), one(1.2), one(1.0, 1.1, 1.2)
    merged = {name: value + right.learned()[name] for name, value in left.learned().items()}
    fresh = one()
    fresh.restore(merged)
    path = np.array([[0], [2]])
    np.testing.assert_allclose(fresh.read(path, 0), both.read(path, 0))


def test_a_new_context_leans_on_the_level_above_by_a_bounded_weight() -> None:
    ledgers = Ledgers({"all": 1, "task": 2}, 1, 2, Memory(discount=1.0), weight=16.0)
    for _ in range(10):
        ledgers.add(lot(2.0, 0, 1))
    new = ledgers.read(np.array([[0], [2]]), 0)[0, 0]
    assert new[N] == pytest.approx(16.0)
    assert new[EARNED] / new[SPENT] == pytest.approx(2.0)
    assert new[CROSS] == pytest.approx(32.0)


def test_requests_are_not_part_of_the_state_and_bad_states_change_nothing() -> None:
    ledgers = Ledgers({"all": 1, "task": 2, "request": 8}, 1, 2, Memory(), 16.0)
    assert set(ledgers.learned()) == {"sums.all", "sums.task"}
    ledgers.add(lot(2.0, 0, 1, 3))
    before = ledgers.learned()
    with pytest.raises(StateError, match="other arms"):
        ledgers.restore({"sums.all": before["sums.all"], "sums.task": np.zeros((1, 1, 2, 6))})
    np.testing.assert_array_equal(ledgers.learned()["sums.all"], before["sums.all"])
    ledgers.forget(3)
    assert not ledgers.read(np.array([[3]]), 0).any()
