"""The signals a policy sees, what rounds say of themselves, and states: written back whole or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.control.policy import Learner
from adaptspec.errors import StateError
from adaptspec.types import FloatArray
from tests.control.helpers import record, signals


def test_a_part_of_a_batch_knows_how_many_run_beside_it() -> None:
    part = signals([7, 5, 3], cache_gap=[0, 1, 2], beside=2).take(np.array([0, 2]))
    assert part.limits.tolist() == [7, 3]
    assert part.cache_gap[0].tolist() == [0, 2]
    assert (part.batch_size, part.beside, part.round_size) == (2, 3, 5)


def test_a_round_drafted_if_anybody_did() -> None:
    for drafted, said in (([0], False), ([2], True), ([0, 0], False), ([0, 3, 0], True)):
        told = record(drafted, [0] * len(drafted))
        assert told.drafting is told.drafting is said
    mixed = record([0, 3], [0, 1])
    assert (mixed.drafting, mixed.take(np.array([0])).drafting) == (True, False)


class Counting(Learner):
    """Counts under one name of its own, and in a part that is optional."""

    def __init__(self) -> None:
        self.own, self.part = np.zeros(3), np.zeros(2)

    def state(self) -> dict[str, FloatArray]:
        return {"n": self.own, "@part/gains": self.part}


def test_what_fits_is_copied() -> None:
    """A policy that goes on counting must not change what it was given, nor what it gave."""
    one, given = Counting(), {"n": np.ones(3), "@part/gains": -np.ones(2)}
    one.restore(given)
    kept = one.learned()
    one.own += 1.0
    assert given["n"].sum() == kept["n"].sum() == 3.0
    assert kept["@part/gains"].tolist() == [-1.0, -1.0]
    Learner().restore({})


def test_optional_parts_that_are_not_told_of_or_are_others_start_anew() -> None:
    one = Counting()
    one.restore({"n": np.ones(3)})
    one.restore({"n": np.ones(3), "@other/x": np.ones(9), "@part/else": np.ones(2)})
    assert (one.own.sum(), one.part.sum()) == (3.0, 0.0)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "missing"),
        ({"n": np.ones(3), "m": np.ones(3)}, "m cannot be restored"),
        ({"n": np.ones(2)}, r"shape \[2\], not \[3\]"),
        ({"n": np.array([1.0, np.nan, 1.0])}, "no finite"),
        ({"n": np.array([1.0, np.inf, 1.0])}, "no finite"),
        ({"n": np.array([1.0, -0.1, 1.0])}, "negative"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, FloatArray], problem: str) -> None:
    """Counts of other arms, or damaged ones, would mislead for as long as they last. Nothing has changed then."""
    one = Counting()
    with pytest.raises(StateError, match=problem):
        one.restore({"@part/gains": np.ones(2), **given})
    assert not one.own.any()
    assert not one.part.any()
    if given:
        with pytest.raises(StateError, match="learns nothing"):
            Learner().restore(given)
