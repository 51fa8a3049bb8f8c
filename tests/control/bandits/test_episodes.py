"""Episodes: arms are locked, switches rationed, whatever a learner wants."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.bandits.episodes import Episodes
from adaptspec.control.bandits.learner import Pick
from adaptspec.types import IntArray

ONE = np.ones(1)
ZERO: IntArray = np.zeros(1, dtype=np.int64)


def pick(arm: int, *, exploring: bool = False) -> Pick:
    return Pick(np.array([arm]), ONE, np.array([exploring]))


def test_a_dwell_an_exploration_and_a_settled_arm_last_as_long_as_they_should() -> None:
    """From off a try is short; from an arm that drafts it is a dwell."""
    episodes = Episodes(1, dwell=8, probe=4, beat=1, off=0)
    ends = []
    now = 0
    for arm, exploring in ((0, False), (2, True), (1, False), (2, True), (1, False), (1, False), (1, False)):
        episodes.begin(ZERO, pick(arm, exploring=exploring), now, 0, ONE)
        assert not len(episodes.due(ZERO, now, 0))
        ends.append(episodes.end(ZERO) - now)
        now = episodes.end(ZERO)
        assert episodes.due(ZERO, now, 0).tolist() == [0]
    assert ends == [8, 4, 8, 8, 8, 16, 32]


def test_many_rows_explore_in_few_rounds_and_another_batch_size_ends_an_episode() -> None:
    episodes = Episodes(1, dwell=8, probe=4, beat=1)
    episodes.begin(ZERO, pick(1, exploring=True), 0, 4, np.array([16.0]))
    assert episodes.end(ZERO) == 1
    episodes.begin(ZERO, pick(1), 1, 4, np.array([16.0]))
    assert not len(episodes.due(ZERO, 2, 3))
    assert len(episodes.due(ZERO, 2, 2))


def test_a_new_request_begins_with_an_arm_and_chooses_on_the_next_beat() -> None:
    episodes = Episodes(2, dwell=8, probe=4, beat=4)
    episodes.start(1, 5, 2)
    mine = np.array([1])
    assert episodes.arms[1] == 2
    assert not len(episodes.due(mine, 7, 0))
    assert len(episodes.due(mine, 8, 3))
    episodes.start(1, 9, -1)
    assert len(episodes.due(mine, 9, 0))


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=300, max_size=300))
@settings(max_examples=10, deadline=None)
def test_who_keeps_to_the_ration_switches_44_times_in_1000_rounds_at_most(wishes: list[tuple[int, bool]]) -> None:
    episodes = Episodes(1, dwell=4, probe=1, beat=1)
    switches, now, arm = 0, 0, 0
    episodes.begin(ZERO, pick(0), now, 0, ONE)
    for wish, exploring in wishes:
        now = episodes.end(ZERO)
        if now > 1000:
            break
        chosen = wish if episodes.saved(ZERO, now)[0] >= 1.0 else arm
        switches += chosen != arm
        arm = chosen
        episodes.begin(ZERO, pick(chosen, exploring=exploring), now, 0, ONE)
        assert episodes.saved(ZERO, now)[0] >= 0.0
    assert switches <= 44
