"""Files of learned state: an exact round trip, and no damage passes.

What each damage is answered is in the contract `damage`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from adaptspec.control.learned_state import LearnedState, PolicyState, from_bytes, read_state, to_bytes
from adaptspec.errors import StateError
from tests.files.samples import SAMPLES, learned_state
from tests.records import same

SAMPLE = SAMPLES / "state-2.json"
FINITE = st.floats(-1e12, 1e12, allow_nan=False)
ARRAYS = arrays(np.float64, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3), elements=FINITE)
POLICIES = st.dictionaries(
    st.text(max_size=6), st.builds(PolicyState, st.text(max_size=6), st.dictionaries(st.text(max_size=4), ARRAYS))
)


def equal(a: LearnedState, b: LearnedState) -> bool:
    """Equal, arrays bit for bit."""
    names = a.policies.keys() == b.policies.keys()
    return names and (a.pair, a.tasks) == (b.pair, b.tasks) and all(map(_equal, *_policies(a, b)))


def _policies(a: LearnedState, b: LearnedState) -> tuple[list[PolicyState], list[PolicyState]]:
    return [a.policies[name] for name in a.policies], [b.policies[name] for name in a.policies]


def _equal(a: PolicyState, b: PolicyState) -> bool:
    names = a.arrays.keys() == b.arrays.keys()
    return names and a.signature == b.signature and all(same(a.arrays[name], b.arrays[name]) for name in a.arrays)


@given(POLICIES, st.lists(st.text(max_size=6), max_size=3).map(tuple))
@settings(max_examples=40, deadline=None)
def test_a_state_is_read_as_it_was_written(policies: dict[str, PolicyState], tasks: tuple[str, ...]) -> None:
    """Bit for bit, whatever the names and shapes."""
    state = LearnedState("pair", policies, tasks)
    assert equal(from_bytes(to_bytes(state)), state)


def test_the_sample_is_read() -> None:
    assert equal(read_state(SAMPLE), learned_state())
    assert SAMPLE.read_bytes() == to_bytes(read_state(SAMPLE))


def test_every_truncation_and_every_flipped_byte_is_refused() -> None:
    """A disk that returns wrong bytes must not teach anything."""
    raw = SAMPLE.read_bytes()
    for end in range(len(raw)):
        with pytest.raises(StateError):
            from_bytes(raw[:end])
    for index in range(len(raw)):
        with pytest.raises(StateError):
            from_bytes(raw[:index] + bytes([raw[index] ^ 1]) + raw[index + 1 :])


def test_a_number_that_is_not_finite_is_not_written() -> None:
    """A policy that computed NaN must not spoil the file of the others."""
    with pytest.raises(StateError, match="no finite number; it is not saved"):
        to_bytes(LearnedState("pair", {"p": PolicyState("s", {"n": np.array([np.nan])})}))


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"none\.json: cannot be read \(No such file"):
        read_state(tmp_path / "none.json")
