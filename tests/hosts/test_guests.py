"""Rows of requests: how deep each may draft, and that none is given twice."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.hosts.guests import Guests, Told
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
        assert guests.of(names).tolist() == [guests.rows[one] for one in names]


def test_what_is_told_of_later_is_counted() -> None:
    """For those that are here still: before the next decision, or as they leave. Nobody has what another had."""
    guests = Guests(2, model_len=30, behind=2)
    for name in "ab":
        guests.enter(request(name))
    guests.later(["a", "b", "x"], [2, 1, 9])
    guests.later(["a"], [3])
    row, _ = guests.leave("b") or (-1, None)
    assert guests.written[row] == 1
    assert guests.enter(request("c")) == row
    guests.catch_up()
    assert guests.written[guests.of(["a", "c"])].tolist() == [5, 0]
    guests.catch_up()
    assert guests.written[guests.of(["a", "c"])].tolist() == [5, 0]


def test_strangers_are_left_out() -> None:
    """What is told of requests that have gone is no round of theirs; more is never accepted than was drafted."""
    guests = Guests(4, model_len=30, behind=1)
    guests.enter(request("a"))
    guests.enter(request("b"))
    told = Told.of(guests, ["x", "b", "a"], ([1, 2, 3], [1, 9, 0], [2, 3, 1]))
    assert list(told.ids) == ["b", "a"]
    assert told.drafted.tolist() == [2, 3]
    assert told.accepted.tolist() == [2, 0]
    guests.count(told.rows, told.drafted, told.accepted)
    assert guests.stats(guests.rows["b"], guests.requests["b"]).accepted == 2
    assert np.array_equal(told.take([1]).rows, [guests.rows["a"]])
