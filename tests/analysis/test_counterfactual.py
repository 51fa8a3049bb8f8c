"""Counterfactual: what a round shows of a drafter's chain, and how many tokens of it other depths would have kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adaptspec.analysis.counterfactual import Counterfactual
from adaptspec.rounds import RoundRecord
from tests.control.helpers import record

DEPTHS = np.array([1, 2, 3, 5])
HALF = np.full((1, 5), 0.5)


def accepted(played: RoundRecord, drafter: int = 0) -> tuple[list[int], list[float]]:
    """Of the first row at DEPTHS: tokens that are known, and those expected beyond at an acceptance of 1/2."""
    certain, expected = Counterfactual.of(played, drafter).accepted(DEPTHS, HALF)
    return certain[0].tolist(), expected[0].tolist()


def scored(played: RoundRecord, drafted: int, agreed: int) -> RoundRecord:
    """With the score of drafter 1, which did not draft."""
    return replace(played, shadow=np.array([[-1], [agreed]]), shadow_drafted=np.array([[-1], [drafted]]))


def test_a_rejection_settles_every_depth() -> None:
    """Deeper drafts would have met the same wrong token."""
    assert accepted(record([3], [1])) == ([1, 1, 1, 1], [0.0] * 4)


def test_after_full_acceptance_deeper_drafts_are_guessed() -> None:
    assert accepted(record([2], [2])) == ([1, 2, 2, 2], [0.0, 0.0, 0.5, 0.875])


def test_a_draft_that_found_no_more_is_no_deeper_at_any_depth() -> None:
    """Without entropies no stop rule cut it, so its drafter had nothing further."""
    ngram = record([2], [2], depths=[5], confidence=float("nan"))
    assert accepted(ngram) == ([1, 2, 2, 2], [0.0] * 4)
    assert Counterfactual.of(ngram, 0).available.tolist() == [2]
    stopped = record([2], [2], depths=[5])  # by a stop rule: another depth or rule may have gone on
    assert accepted(stopped)[1] == [0.0, 0.0, 0.5, 0.875]


def test_a_request_that_ended_within_its_draft_kept_what_it_emitted() -> None:
    played = replace(record([4], [4]), emitted=np.array([3]))
    assert accepted(played) == ([1, 2, 2, 2], [0.0] * 4)


def test_a_drafter_that_was_scored_counts_as_far_as_it_was_compared() -> None:
    played = record([3], [2])  # three tokens emitted
    assert accepted(scored(played, 3, 1), 1) == ([1, 1, 1, 1], [0.0] * 4)
    assert accepted(scored(played, 3, 3), 1) == ([1, 2, 3, 3], [0.0, 0.0, 0.0, 0.75])
    assert accepted(scored(played, 2, 2), 1) == ([1, 2, 2, 2], [0.0] * 4), "it found no third token"


def test_a_drafter_of_which_nothing_is_known_is_guessed_from_the_first_token() -> None:
    assert accepted(record([3], [1]), 1) == ([0, 0, 0, 0], [0.5, 0.75, 0.875, 0.96875])
