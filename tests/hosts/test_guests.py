"""Rows of requests: how deep each may draft, and that none is given twice."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.hosts.guests import Guests, StepOutcome
from adaptspec.request import Request, SamplingParams, SpeculationParams


def request(name: str, prompt: int = 4, most: int = 20, depth: int | None = None) -> Request:
    return Request(name, (0,) * prompt, SamplingParams(most), SpeculationParams(max_depth=depth))


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcdefgh")), max_size=60))
def test_no_row_is_given_twice(changes: list[tuple[bool, str]]) -> None:
    """However requests come and go; who finds none is not here."""
    guests = Guests(4, model_len=100, behind=2)
    for enters, name in changes:
        if enters:
            guests.enter(request(name))
        else:
            guests.leave(name)
        assert len(set(guests.rows.values())) == len(guests.rows) == len(guests.requests) <= 4
        names = list(guests.rows)
        found, rows = guests.find(["x", *names])
        assert (list(found), rows.tolist()) == (names, [guests.rows[one] for one in names])


def test_requests_of_one_row_have_different_serial_numbers() -> None:
    """So the outcome of a late step is never credited to the next request, even to one of the same name."""
    guests = Guests(1, model_len=30, behind=1)
    seen = set[tuple[int, int]]()
    for _ in range(3):
        row = guests.enter(request("a"))
        assert row is not None
        seen.add((guests.changes, guests.serials.item(row)))
        guests.leave("a")
    assert len({changes for changes, _ in seen}) == len({serial for _, serial in seen}) == 3


def test_strangers_are_left_out() -> None:
    """What is told of requests that have gone is no round of theirs; more is never accepted than was drafted."""
    guests = Guests(4, model_len=30, behind=1)
    guests.enter(request("a"))
    guests.enter(request("b"))
    told = StepOutcome.of(guests, ["x", "b", "a"], np.array([[1, 2, 3], [1, 9, 0], [2, 3, 1]]))
    assert list(told.ids) == ["b", "a"]
    assert told.drafted.tolist() == [2, 3]
    assert told.accepted.tolist() == [2, 0]
    guests.count(told.rows, told.drafted, told.accepted, 0.0)
    assert guests.stats(guests.rows["b"], guests.requests["b"]).accepted == 2
    assert np.array_equal(told.take(np.array([1])).rows, [guests.rows["a"]])
