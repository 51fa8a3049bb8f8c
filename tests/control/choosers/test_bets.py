"""Bets of several rounds are scored together: everybody's gains are their own, alone or in a batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.choosers.bets import Bet, BetBook, Bets
from adaptspec.control.choosers.lookup import Prices
from adaptspec.control.choosers.mixing import RoundPrices
from adaptspec.types import RoundRecord
from tests.control.helpers import record

LOOKUP = 1
PRICES = Prices(RoundPrices(1.0, 4e-3, 4.2e-3, 1e-4 * np.arange(9.0)), 300.0, None)
EXPECTED = [0.8, 1.5, 2.1, 2.5]


def bet(depth: int = 3) -> Bet:
    return Bet(EXPECTED, depth, None, beside=True, kept=1.2, worth=0.2, prices=PRICES, entry=0.1)


def bets(depths: list[int]) -> Bets:
    size = len(depths)
    return Bets(
        depth=np.array(depths),
        kinds=np.zeros(size, dtype=np.int64),
        gains=np.array([EXPECTED]),
        kept=np.full(size, 1.2),
        prices=PRICES,
        entry=0.1,
    )


def scored(emitted: int, reach: int, right: int) -> RoundRecord:
    """A round of one row in which the draft model drafted, and the lookup would have had `right` of `reach` tokens."""
    made = record([3], [emitted - 1], drafter=[0])
    return replace(made, shadow=np.array([[-1], [right]]), shadow_drafted=np.array([[-1], [reach]]))


@given(st.integers(1, 4), st.integers(0, 4), st.integers(0, 4), st.integers(1, 4))
def test_a_row_alone_is_scored_as_one_of_a_batch(emitted: int, reach: int, right: int, depth: int) -> None:
    told = scored(emitted, reach, min(right, reach, emitted))
    alone, batch = BetBook(1, LOOKUP), BetBook(1, LOOKUP)
    alone.note(bet(depth), told)
    batch.note(bets([depth]), told)
    one, many = alone.settle(), batch.settle()
    assert one is not None
    assert many is not None
    assert np.allclose(one.gains, many.gains)


def test_rounds_scored_together_come_to_what_they_do_one_by_one() -> None:
    told = [scored(2, 3, 2), scored(1, 2, 0), scored(3, 3, 3)]
    together, single = BetBook(1, LOOKUP), BetBook(1, LOOKUP)
    gains = np.zeros((1, 3))
    for one in told:
        together.note(bet(), one)
        single.note(bet(), one)
        gained = single.settle()
        assert gained is not None
        gains += gained.gains
    all_of_it = together.settle()
    assert all_of_it is not None
    assert np.allclose(all_of_it.gains, gains)
    assert all_of_it.gains[0, 2] == 3.0
    assert together.settle() is None


def test_what_a_request_gained_stays_its_own_when_another_comes_into_its_row() -> None:
    """It counts for the group of the one that ended, and for no row."""
    book = BetBook(1, LOOKUP)
    book.start(0, 5)
    book.note(bet(), scored(3, 3, 3))
    book.start(0, 6)
    book.note(bet(), scored(1, 3, 0))
    gained = book.settle()
    assert gained is not None
    told = dict(zip(gained.rows.tolist(), gained.groups.tolist(), strict=True))
    assert told == {-1: 5, 0: 6}
    worth = dict(zip(gained.rows.tolist(), gained.gains[:, 1].tolist(), strict=True))
    assert worth[-1] > worth[0]
    book.note(bet(), scored(2, 3, 2))
    later = book.settle()
    assert later is not None
    assert (later.rows.tolist(), later.groups.tolist()) == ([0], [6])


@pytest.mark.parametrize("rounds", [63, 64])
def test_open_bets_are_bounded(rounds: int) -> None:
    """Each holds on to the record of its round."""
    book = BetBook(1, LOOKUP)
    for _ in range(rounds):
        book.note(bet(), scored(1, 1, 0))
    assert book.full is (rounds >= 64)
