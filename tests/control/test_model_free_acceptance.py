"""What a drafter states of its finds is believed as far as it came true, by request and task, whether it ran or not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adaptspec.control.model_free_acceptance import StatedAcceptance
from adaptspec.control.policy import BatchSignals
from adaptspec.rounds import RoundRecord
from tests.control import helpers
from tests.control.helpers import note

_DEPTH = 3


def _signals(*stated: float, row: int = 0) -> BatchSignals:
    signals = helpers.signals([7], rows=[row], found=[len(stated)])
    return replace(signals, stated=np.array([[[np.nan] * len(stated)], [list(stated)]]))


def _scored(stated: float, found: int, kept: int, row: int = 0) -> RoundRecord:
    """A round of the first drafter, in which the second one was scored."""
    record = helpers.record([2], [2], rows=[row])
    scores = {"shadow": np.array([[-1], [kept]]), "shadow_drafted": np.array([[-1], [found]])}
    return replace(
        record, **scores, stated=np.array([[[np.nan] * 7], [[stated] * 7]]), tasks=np.zeros(1, dtype=np.int64)
    )


def test_surer_finds_are_expected_to_be_kept_longer() -> None:
    known = StatedAcceptance(2, 1, _DEPTH)
    sure, unsure = known.likely(1, _signals(0.9, 0.9, 0.9))[0], known.likely(1, _signals(0.1, 0.1, 0.1))[0]
    assert sure[0] == unsure[0] == 0.0
    assert (sure[1:] > unsure[1:]).all()
    assert (np.diff(sure) > 0.0).all()


def test_nothing_is_expected_beyond_what_was_found_or_where_nothing_is_stated() -> None:
    known = StatedAcceptance(2, 1, _DEPTH)
    short = known.likely(1, _signals(0.9))[0]
    assert short[1] == short[2] == short[3] > 0.0
    assert not known.likely(1, replace(_signals(0.9), stated=None)).any()
    assert not known.likely(0, _signals(0.9)).any()  # the first drafter says nothing


def test_what_came_true_is_learned_though_another_drafted() -> None:
    known = StatedAcceptance(2, 1, _DEPTH)
    before = known.likely(1, _signals(0.9))[0, 1]
    for _ in range(64):
        note(known, _scored(0.9, 2, 0))
    assert known.likely(1, _signals(0.9))[0, 1] < 0.5 * before
    for _ in range(64):
        note(known, _scored(0.25, 2, 2))
    assert known.likely(1, _signals(0.25))[0, 1] > known.likely(1, _signals(0.9))[0, 1]


def test_rounds_of_a_request_that_ended_are_not_the_next_ones() -> None:
    known = StatedAcceptance(2, 1, _DEPTH)
    note(known, _scored(0.9, 2, 0))
    known.start(0)
    known.settle()
    note(known, _scored(0.9, 2, 0), ended=True)  # its last round comes late
    known.settle()
    own, other = (known.likely(1, _signals(0.9, row=row)) for row in (0, 1))
    np.testing.assert_allclose(own, other)
