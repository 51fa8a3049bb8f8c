"""Drafts cut where a grammar refuses them: what is left is counted, and nothing of the rest is told."""

from __future__ import annotations

import numpy as np

from adaptspec.engine.prevalidation import cut_refused
from adaptspec.models.draft import Draft
from adaptspec.models.grammars import Constraint
from tests.models.matchers import VOCAB, Climb


def test_each_row_is_cut_by_its_own_grammar() -> None:
    """Rows without one stay as they are; a token that ends the text is the last."""
    tokens = np.array([[1, 2, 2, 3], [9, 9, 9, 9], [3, 0, 4, 5], [5, 1, 1, 0]])
    told = np.full((4, 4), 0.5)
    draft = Draft(tokens, np.array([4, 4, 4, 2]), told, told)
    constraints = [Constraint(Climb(), VOCAB, (0,)), None, *(Constraint(Climb(), VOCAB, (0,)) for _ in range(2))]
    cut = cut_refused(draft, constraints)
    assert cut.counts.tolist() == [2, 4, 2, 0]
    assert cut.tokens.tolist() == [[1, 2, 0, 0], [9, 9, 9, 9], [3, 0, 0, 0], [0, 0, 0, 0]]
    assert np.isnan(cut.confidence).sum(axis=1).tolist() == [2, 0, 2, 4]
    assert draft.counts.tolist() == [4, 4, 4, 2], "the drafter's own stays"


def test_a_draft_that_fits_is_left_alone() -> None:
    """No copy where nothing is cut."""
    draft = Draft(np.array([[1, 2]]), np.array([2]), np.zeros((1, 2)), np.zeros((1, 2)))
    assert cut_refused(draft, [Constraint(Climb(), VOCAB, (0,))]) is draft
