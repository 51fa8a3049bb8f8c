"""What is cut off a draft leaves no trace that anyone reads."""

from __future__ import annotations

import numpy as np

from adaptspec.models.draft import Draft


def test_a_draft_is_cut_row_by_row() -> None:
    draft = Draft.empty(3, 2)
    assert not draft.counts.any()
    draft.tokens[:], draft.confidence[:], draft.entropy[:], draft.counts[:] = 7, 0.5, 1.5, 2
    cut = draft.cut(np.array([2, 1, 0]))
    assert cut.tokens.tolist() == [[7, 7], [7, 0], [0, 0]]
    assert cut.counts.tolist() == [2, 1, 0]
    assert (
        (~np.isnan(cut.confidence)).sum(axis=1).tolist() == (~np.isnan(cut.entropy)).sum(axis=1).tolist() == [2, 1, 0]
    )
