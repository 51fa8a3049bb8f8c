"""Weights over experts: they follow gains, keep every expert within reach, and add up across replicas."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.choosers.experts import FixedShare

ONE = np.zeros(1, dtype=np.int64)


@given(gains=st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=1, max_size=60))
def test_weights_are_chances_and_none_falls_out_of_reach(gains: list[tuple[float, float]]) -> None:
    experts = FixedShare(1, 2, rate=1.0, share=0.01)
    for gain in gains:
        experts.gain(ONE, np.array([gain]), np.ones(1))
        weights = experts.weights(ONE)[0]
        assert abs(weights.sum() - 1.0) < 1e-9
        assert weights.min() >= 0.005 - 1e-12


def test_gains_decide_and_a_shift_is_followed_within_its_bound() -> None:
    """Log(1 / share) / (rate x lead) rounds, whatever was gained before."""
    experts = FixedShare(2, 2, rate=0.5, share=0.01)
    for _ in range(500):
        experts.gain(ONE, np.array([[1.0, 0.0]]), np.ones(1))
    assert experts.weights(ONE)[0, 0] > 0.97
    for _ in range(int(np.log(1 / 0.005) / 0.5) + 3):
        experts.gain(ONE, np.array([[0.0, 1.0]]), np.ones(1))
    assert experts.weights(ONE)[0, 1] > 0.5
    assert experts.weights(ONE + 1)[0].tolist() == [0.5, 0.5], "the other group has seen nothing"


def test_several_rounds_at_once_are_close_to_one_by_one() -> None:
    whole, parts = (FixedShare(1, 3, rate=0.3, share=0.01) for _ in range(2))
    gains = np.random.default_rng(0).normal(0.0, 0.5, (8, 3))
    whole.gain(ONE, gains.sum(axis=0)[None], np.array([8.0]))
    for gain in gains:
        parts.gain(ONE, gain[None], np.ones(1))
    assert np.abs(whole.weights(ONE) - parts.weights(ONE)).max() < 0.03


def test_evidence_of_replicas_adds() -> None:
    one, other, both = (FixedShare(1, 2, rate=0.5, share=0.01) for _ in range(3))
    one.gain(ONE, np.array([[2.0, 0.0]]), np.ones(1))
    other.gain(ONE, np.array([[2.0, 0.0]]), np.ones(1))
    both.restore(one.learned() + other.learned())
    assert both.weights(ONE)[0, 0] > one.weights(ONE)[0, 0]
    none = FixedShare(1, 2, rate=0.5, share=0.01)
    none.restore(np.array([[900.0, -900.0]]))
    assert none.weights(ONE)[0, 1] >= 0.004
