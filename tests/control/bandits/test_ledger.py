"""The ledger: sums fade, add up and lean on the level above; contexts are described."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptspec.control.bandits.ledger import CROSS, EARNED, SPENT, Ledger, N
from adaptspec.errors import StateError
from adaptspec.types import FloatArray
from tests.control.bandits.makers import ledger
from tests.control.helpers import record, signals


def told(earned: float, rounds: int = 8, rows: int = 1) -> FloatArray:
    """Rounds that are all alike, at all arms."""
    return np.tile(np.array([1.0, earned, 1.0]), (rounds, rows, 4, 1))


def at(*contexts: int) -> np.ndarray:
    return np.array(contexts, dtype=np.int64)


def test_rows_of_a_context_in_a_round_count_as_their_mean() -> None:
    """Two rows of one task and one of another; arm 1 was seen by one row only."""
    seen = np.zeros((1, 3, 4, 3))
    seen[0, :, 0] = [[1, 2, 1], [1, 4, 3], [1, 9, 1]]
    seen[0, 0, 1] = [1, 5, 2]
    lot = ledger("task").add(at(0, 0, 1), 0, seen)
    assert lot.contexts.tolist() == [0, 1]
    assert lot.sums[0, 0].tolist() == [1.0, 3.0, 2.0, 9.0, 6.0, 4.0]
    assert lot.sums[0, 1].tolist() == [1.0, 5.0, 2.0, 25.0, 10.0, 4.0]
    assert not lot.sums[1, 1].any()


def test_what_was_seen_fades_by_rounds() -> None:
    own = ledger("global", discount=0.9)
    for _ in range(2):
        own.add(at(0), 0, told(2.0))
    assert own.read(at(0), 0)[0, 0, EARNED] == pytest.approx(16.0 * (1.0 + 0.9**8))


def test_a_new_context_leans_on_the_level_above_by_a_bounded_weight() -> None:
    own = ledger("task")
    for _ in range(10):
        own.add(at(0), 0, told(2.0))
    new = own.read(at(1), 0)[0, 0]
    assert new[N] == pytest.approx(16.0)
    assert new[EARNED] / new[SPENT] == pytest.approx(2.0)
    assert new[CROSS] == pytest.approx(32.0)


def test_a_new_request_knows_its_task_and_not_the_rows_last_request() -> None:
    own = ledger("request")
    first = own.start(2)
    own.of(at(2), at(1))
    own.add(at(first), 0, told(2.0, 100))
    second = own.start(2)
    own.of(at(2), at(1))
    assert second != first
    assert own.read(at(first), 0)[0, 0, N] == pytest.approx(116.0)
    assert own.read(at(second), 0)[0, 0, N] == pytest.approx(16.0)
    assert set(own.learned()) == {"sums.all", "sums.task"}


def test_states_of_replicas_add_and_bad_ones_change_nothing() -> None:
    def one(*values: float) -> Ledger:
        own = ledger("task")
        for value in values:
            own.add(at(1), 0, told(value))
        return own

    left, right, both, fresh = one(1.0, 1.1), one(1.2), one(1.0, 1.1, 1.2), one()
    fresh.restore({name: value + right.learned()[name] for name, value in left.learned().items()})
    np.testing.assert_allclose(fresh.read(at(1), 0), both.read(at(1), 0))
    with pytest.raises(StateError, match="other arms"):
        fresh.restore({"sums.all": np.ones_like(fresh.learned()["sums.all"]), "sums.task": np.zeros((1, 1))})
    np.testing.assert_allclose(fresh.read(at(1), 0), both.read(at(1), 0))


def test_contexts_are_described_by_their_rows() -> None:
    """Task, batch size, entropy and length of the drafts, context, position; a new request starts blank."""
    own = ledger("task", tasks=3)
    own.start(0)
    own.start(1)
    rows = at(0, 1)
    own.note(rows, at(1, 2), [record([2, 0], [1, 0], confidence=1.0), record([0, 0], [0, 0])])
    seen = replace(signals([7, 7], tasks=[1, 2]), position=np.array([0, 255]))
    got = own.describe(seen, np.eye(2))
    assert got.shape == (2, own.features)
    assert got[:, :3].tolist() == [[0, 1, 0], [0, 0, 1]]
    assert got[:, 4].tolist() == [0.25, 0.0]
    assert got[:, 6].tolist() == [0.0, 1.0]
    assert got[:, 7].tolist() == [0.25 / 8.0, 0.0]
    both = own.describe(seen, np.full((1, 2), 0.5))
    assert both[0] == pytest.approx(got.mean(axis=0))
    own.start(0)
    assert not own.describe(seen, np.eye(2))[0, [4, 7]].any()
