"""What drafters came to, whoever ran: real outcomes, scores cut at the best depth, expectations for the rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adaptspec.control.choosers.goodput import Goodput, GoodputSettings
from adaptspec.control.choosers.prospects import Prospects
from adaptspec.types import FloatArray
from tests.control.helpers import record, signals, table

ROWS = np.array([0])


def prospects() -> Prospects:
    """Two drafters, both expected to pay: the draft model costs steps, the lookup only verification."""
    cost = table()
    made = Prospects(2, 1, 7)
    parts = [Goodput(cost, 1, 1, GoodputSettings(drafter=name)) for name in ("draft-model", "ngram")]
    made.renew(ROWS, [part.market(signals([7])) for part in parts])
    return made


def scored(drafted: int, accepted: int, reach: int, got: int) -> FloatArray:
    """Gains [2] of a round that the draft model ran, the lookup scored."""
    played = replace(
        record([drafted], [accepted]), shadow=np.array([[-1], [got]]), shadow_drafted=np.array([[-1], [reach]])
    )
    return prospects().gains([played]).net[:, 0]


def test_the_drafter_that_ran_gains_by_its_outcome() -> None:
    good, bad = scored(4, 4, 5, 1), scored(4, 0, 1, 0)
    assert good[0] - bad[0] == 4.0


def test_a_score_counts_as_far_as_it_is_known() -> None:
    """Wrong at once is worse than right once; right as far as anybody knows is worth at least what was seen."""
    nothing, one, open_ = scored(2, 2, 3, 0)[1], scored(2, 2, 3, 1)[1], scored(2, 2, 3, 3)[1]
    assert nothing < one < open_
    unproposed = scored(2, 2, 0, 0)[1]
    assert unproposed == 0.0, "a lookup that found nothing cost nothing"
    assert nothing < 0.0


def test_what_nobody_knows_is_what_was_expected() -> None:
    made = prospects()
    unknown = made.gains([record([3], [3], drafter=[1])]).net[0, 0]
    assert unknown == made.expected(ROWS)[0, 0]


def test_the_cheaper_drafter_of_the_same_acceptance_nets_more() -> None:
    model, lookup = prospects().expected(ROWS)[:, 0]
    assert lookup > max(model, 0.0)


def test_a_new_request_is_open_to_all() -> None:
    made = prospects()
    made.forget(0)
    assert made.useful(ROWS).all()
