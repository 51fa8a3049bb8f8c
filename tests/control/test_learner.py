"""Arrays from outside: shape, sign and finiteness are checked before anything is built on them."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.control.learner import Learner, counts, sums
from adaptspec.errors import StateError


def test_what_fits_is_copied() -> None:
    """A policy that goes on counting must not change what it was given."""
    given = {"n": np.ones((2, 3))}
    taken = counts(given, "n", (2, 3))
    taken += 1.0
    assert given["n"].sum() == 6.0
    assert sums({"m": -np.ones(2)}, "m", (2,)).tolist() == [-1.0, -1.0]
    Learner().restore({})


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "missing"),
        ({"n": np.ones(2)}, r"shape \[2\], not \[3\]"),
        ({"n": np.array([1.0, np.nan, 1.0])}, "no finite"),
        ({"n": np.array([1.0, np.inf, 1.0])}, "no finite"),
        ({"n": np.array([1.0, -0.1, 1.0])}, "negative"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, np.ndarray], problem: str) -> None:
    """Counts of other arms, or damaged ones, would mislead for as long as they last."""
    with pytest.raises(StateError, match=problem):
        counts(given, "n", (3,))
    if given:
        with pytest.raises(StateError, match="learns nothing"):
            Learner().restore(given)
