"""Rows that join a batch are judged as the joint plan would have judged them."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.control.choosers.chooser import Outlook
from adaptspec.control.choosers.goodput import Goodput
from adaptspec.control.choosers.standing import SeatedOutlook, Wishes, asked
from adaptspec.types import Reason
from tests.control.helpers import record, signals, table


def served(rows: int, rounds: int, accepts: int) -> Goodput:
    """After rounds of a full batch in which `accepts` tokens of each row were right."""
    made = Goodput(table(), rows, 1)
    for row in range(rows):
        made.start(row, 0)
    for _ in range(rounds):
        depths = made.choose(signals([7] * rows)).depths.tolist()
        made.learn(record(depths, [min(d, accepts) for d in depths]))
    return made


def test_a_newcomer_is_as_sure_as_its_drafts_say() -> None:
    """Others reject less often than their draft's confidence tells; of a new one nobody knows: its factor is 1."""
    made = served(16, 20, accepts=2)
    made.start(3, 0)
    outlook = made.choose(signals([7] * 16)).outlook
    assert isinstance(outlook, SeatedOutlook)
    assert outlook.factors[3] == 1.0
    assert outlook.factors[0] < 0.9


def joined(accepts: int, lag: int = 0) -> list[int]:
    """Depths of 16 rows, of which one has just come, after rounds in which `accepts` tokens of each were right.

    The draft model has `lag` tokens of it to read.
    """
    made = served(16, 40, accepts)
    made.start(3, 0)
    choice = made.choose(signals([7] * 16, lag=[lag if row == 3 else 0 for row in range(16)]))
    tried = choice.reasons == Reason.EXPLORE  # a row that is off may happen to be tried just now
    return [int(depth) for depth in np.where(tried, 0, choice.depths)]


def test_a_newcomer_does_as_its_likes_do() -> None:
    deep = joined(7)
    assert deep[3] == deep[0] > 0
    none = joined(0)
    assert none[3] == 0 == np.median(none)


def test_a_newcomer_pays_for_what_must_be_read_first() -> None:
    """A short prompt is soon earned back; one that takes longer to read than drafting will ever save is left unread."""
    short, long = joined(7, lag=10), joined(7, lag=200_000)
    assert short[3] == short[0] > 0
    assert long[3] == 0
    assert long[:3] == short[:3]


def test_newcomers_of_a_smaller_batch_are_judged_by_its_own_prices() -> None:
    """Among 64 rows a token is dear; when all but a few have left, those that come then need not know it."""
    made = served(64, 30, accepts=7)
    for _ in range(3):
        depths = made.choose(signals([7] * 8)).depths.tolist()
        made.learn(record(depths, depths))
    made.start(3, 0)
    choice = made.choose(signals([7] * 8))
    assert choice.depths[3] == choice.depths[0]


def test_an_outlook_of_rows_that_were_seated_says_what_one_made_for_them_would() -> None:
    """Whatever is read of it, and in whatever order: the rows' own, where a plan was made for others."""
    wishes, rows, depths = Wishes(8, 3), np.array([5, 0, 2]), np.array([2, 0, 3])
    acceptance = np.linspace(0.3, 0.9, 9).reshape(3, 3)
    factors, kept = np.array([0.5, 1.0, 2.0]), np.array([1.0, 0.9, 0.8])
    verify = np.arange(10.0)
    made = Outlook(900.0, acceptance, 1e-3, 1e-4, verify, factors, kept, kept, depths)
    wishes.note(rows, depths, None, made)
    wishes.note_one(7, 1, None, np.array([0.5, 0.4, 0.3, 1.5, 0.0, 0.1, 0.2, 0.3]))
    assert (wishes.depths[7], wishes.factors[7]) == (1, 1.5)
    assert (wishes.acceptance[7].tolist(), wishes.gained[7].tolist()) == ([0.5, 0.4, 0.3], [0.0, 0.1, 0.2, 0.3])
    plan = Outlook(900.0, np.full((2, 3), 0.1), 1e-3, 1e-4, verify, None, kept, kept, np.array([1, 1]))
    seated = SeatedOutlook(plan, wishes, rows, depths)
    assert np.array_equal(seated.expected(depths).accepted, made.expected(depths).accepted)
    for name in ("gained", "acceptance", "factors", "planned", "sizes", "kept", "drafted", "verify"):
        assert np.array_equal(getattr(seated, name), getattr(made, name)), name
    assert (seated.goodput, seated.per_step, seated.per_row) == (made.goodput, made.per_step, made.per_row)


@pytest.mark.parametrize("cap", [None, 3])
def test_a_row_alone_asks_for_what_it_would_in_a_batch(cap: int | None) -> None:
    """Whether it was there when the plan was made, came later, or runs by itself."""
    depths = np.array([2, 0, 1])
    plan = Outlook(900.0, np.full((3, 3), 0.5), 1e-3, 1e-4, np.arange(10.0))
    wishes = Wishes(6, 3)
    wishes.note(np.array([4, 0, 2]), depths, cap, plan)
    for row, depth in zip((5, 1, 3), depths.tolist(), strict=True):
        wishes.note_one(row, depth, cap, np.zeros(8))
    for rows in ([4, 0, 2], [5, 1, 3]):
        for row, depth in zip(rows, depths, strict=True):
            alone, why = asked(np.array([depth]), cap)
            assert (wishes.asked[row], wishes.reasons[row]) == (alone.item(), why.item())
