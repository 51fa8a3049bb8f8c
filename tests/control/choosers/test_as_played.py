"""A round seen by one drafter: its own rows as they were, scored rows as it would have played them, others off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adaptspec.control.choosers.as_played import as_played
from adaptspec.types import Missed
from tests.control.helpers import record


def test_a_round_of_one_drafter_is_left_as_it_is() -> None:
    played = record([3, 0], [2, 0])
    assert as_played(played, 0, 7) is played


def test_each_drafter_sees_its_own_round() -> None:
    """Row 0 ran on the draft model, row 1 on the lookup; the lookup was scored in row 0, at the depth emitted there."""
    played = replace(
        record([4, 2], [3, 1], drafter=[0, 1]),
        shadow=np.array([[-1, -1], [2, -1]]),
        shadow_drafted=np.array([[-1, -1], [4, -1]]),
        missed=Missed(np.array([5, 0]), np.array([4, 0])),
    )
    model, lookup = as_played(played, 0, 7), as_played(played, 1, 7)
    assert (model.depths.tolist(), model.drafted.tolist(), model.accepted.tolist()) == ([4, 0], [4, 0], [3, 0])
    assert (lookup.depths.tolist(), lookup.drafted.tolist(), lookup.accepted.tolist()) == ([4, 2], [4, 2], [2, 1])
    assert np.isnan(lookup.confidence[0]).all(), "the confidence was the draft model's"
    assert np.isfinite(model.confidence[0]).all()
    assert model.missed is not None
    assert model.missed.agreed.tolist() == [4, 0]
    assert lookup.missed is not None
    assert not lookup.missed.judged.any()
    assert model.shadow is None
    assert lookup.shadow is None


def test_a_score_deeper_than_the_policy_goes_is_cut() -> None:
    played = replace(record([7], [7]), shadow=np.array([[-1], [8]]), shadow_drafted=np.array([[-1], [8]]))
    lookup = as_played(played, 1, 5)
    assert (lookup.depths[0], lookup.drafted[0], lookup.accepted[0], lookup.confidence.shape[1]) == (5, 5, 5, 5)
