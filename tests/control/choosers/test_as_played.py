"""A round seen by one drafter: its own rows as they were, scored rows as it would have played them, others off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.choosers.as_played import as_played
from adaptspec.control.choosers.goodput import Goodput, GoodputSettings
from adaptspec.types import Missed
from tests.control.helpers import record, table


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


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.booleans()), min_size=1, max_size=4), max_size=12
    ),
    st.integers(0, 20),
)
def test_a_mask_teaches_what_the_round_as_played_does(
    rounds: list[list[tuple[int, int, bool]]], caught_up: int
) -> None:
    """Rows of another drafter are told by a mask where nothing was scored: no copy of the round is made."""
    masked, copied = (Goodput(table(), 4, 1, GoodputSettings(tryouts=0.0)) for _ in range(2))
    for rows in rounds:
        depths, kept, other = ([row[part] for row in rows] for part in range(3))
        made = record(depths, [min(k, d) for k, d in zip(kept, depths, strict=True)], drafter=[int(o) for o in other])
        judged = np.array([10 * (not o) for o in other])
        made = replace(made, caught_up=caught_up, missed=Missed(judged, np.minimum(judged, np.array(kept))))
        masked.learn_played(made, made.drafter == 0)
        copied.learn_played(as_played(made, 0, 7))
    for name, counts in copied.learned().items():
        assert np.allclose(masked.learned()[name], counts), name


def test_a_score_deeper_than_the_policy_goes_is_cut() -> None:
    played = replace(record([7], [7]), shadow=np.array([[-1], [8]]), shadow_drafted=np.array([[-1], [8]]))
    lookup = as_played(played, 1, 5)
    assert (lookup.depths[0], lookup.drafted[0], lookup.accepted[0], lookup.confidence.shape[1]) == (5, 5, 5, 5)
