"""The bandit around an algorithm: what is locked, credited, flushed, told and kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adaptspec.control.algorithms.bandit import Bandit
from tests.control.algorithms.makers import scripted
from tests.control.helpers import record, signals


def play(bandit: Bandit, rounds: int, accepted: int = 7, rows: int = 1, task: int = 0) -> list[int]:
    """Rounds of a draft that is right up to `accepted` tokens; the first row's depths."""
    depths = []
    for _ in range(rounds):
        chosen = bandit.choose(signals([7] * rows, tasks=[task] * rows)).depths.tolist()
        depths.append(chosen[0])
        bandit.learn(record(chosen, [min(accepted, depth) for depth in chosen]))
    return depths


def test_an_arm_is_locked_for_its_episode() -> None:
    bandit, _ = scripted([1, 3, 2])
    bandit.start(0)
    assert play(bandit, 24) == [1] * 8 + [7] * 8 + [3] * 8


def test_rounds_a_guard_took_over_teach_nothing() -> None:
    """`learn` without `choose` (a guard decided), and rounds run at another depth than chosen."""
    bandit, _ = scripted([3])
    bandit.start(0)
    bandit.learn(record([7], [7]))
    for _ in range(12):
        bandit.choose(signals([7]))
        bandit.learn(record([0], [0]))
    assert not bandit.learned()["sums.all"].any()


def test_an_outcome_counts_for_the_decision_that_it_is_of() -> None:
    """Told two rounds late, and of requests that have ended, as if at once: nothing is lost, nothing goes astray."""
    late, at_once = scripted([1, 3, 2], "request")[0], scripted([1, 3, 2], "request")[0]
    records = []
    for number in range(1, 40):
        if number % 13 == 1:
            task = number % 2
            late.start(0)
            at_once.start(0)
        for bandit in (late, at_once):
            depth = bandit.choose(replace(signals([7], tasks=[task]), number=number)).depths.tolist()
            told = replace(record(depth, [min(2, depth[0])]), decision=number)
            if bandit is at_once:
                bandit.learn(told)
            else:
                records.append(told)
                if len(records) > 2:
                    late.learn(records.pop(0))
    for told in records:
        late.learn(told)
    for name, sums in at_once.learned().items():
        np.testing.assert_allclose(late.learned()[name], sums)


def test_a_finished_requests_rounds_count_for_its_task_and_not_for_the_rows_next() -> None:
    bandit, learner = scripted([3, 1], "request")
    bandit.start(0)
    play(bandit, 3, task=1)
    bandit.finish(0)
    bandit.start(0)
    assert bandit.learned()["sums.task"][1, 0, 3, 0] == 3.0
    play(bandit, 12, accepted=0)
    assert bandit.learned()["sums.task"][1, 0, 3, 0] == 3.0
    # What the new request knows is its own and its task's, whose record leans on all traffic.
    assert learner.views[-1].ratio[0, 1] < 1.0


def test_a_lagging_drafter_is_charged_to_the_arms_that_need_it() -> None:
    bandit, learner = scripted([0])
    bandit.start(0)
    bandit.choose(signals([7], cache_gap=[2000]))
    view = learner.views[0]
    assert view.entry[0, 0] == 0.0
    assert (view.entry[0, 1:] > 0.05).all()
