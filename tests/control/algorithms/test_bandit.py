"""The bandit: episodes, playable arms, and rounds that are credited to the decision that they ran by."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from adaptspec.control.algorithms.arms import Arms
from adaptspec.control.algorithms.bandit import Bandit, playable
from adaptspec.control.stopping import AdaEdlStop
from adaptspec.decision import Reason
from tests.control.algorithms.makers import OFF, ONE, SEVEN, THREE, TIERS, scripted
from tests.control.helpers import record, signals


def play(bandit: Bandit, rounds: int, accepted: int = 7, rows: int = 1, task: int = 0) -> list[int]:
    """Depths of the first row, in rounds whose drafts are right up to `accepted` tokens."""
    depths = []
    for _ in range(rounds):
        choice = bandit.choose(signals([7] * rows, tasks=[task] * rows))
        chosen = choice.depths.tolist()
        depths.append(chosen[0])
        bandit.learn(record(chosen, [min(accepted, depth) for depth in chosen]), choice.memo)
    return depths


def test_an_arm_is_kept_for_its_episode() -> None:
    bandit, _ = scripted([ONE, SEVEN, THREE])
    bandit.start(0)
    assert play(bandit, 24) == [1] * 8 + [7] * 8 + [3] * 8


def test_an_arm_that_is_chosen_again_is_kept_for_longer() -> None:
    """Twice as long each time, up to four times the dwell."""
    bandit, rule = scripted([THREE])
    bandit.start(0)
    play(bandit, 8 + 16 + 32 + 32 + 1)
    assert [view.rounds.item() for view in rule.views[1:]] == [8, 16, 32, 32]


@pytest.mark.parametrize(("before", "rows", "rounds"), [(OFF, 1, 4), (THREE, 1, 8), (THREE, 4, 4), (OFF, 4, 2)])
def test_exploring_is_shorter_after_off_and_with_many_rows(before: int, rows: int, rounds: int) -> None:
    """Half a dwell after off, and less by the root of the rows that show the arm in each round."""
    bandit, rule = scripted([before, ONE, SEVEN])
    play(bandit, 8, rows=rows)
    rule.exploring = True
    assert play(bandit, rounds + 1, rows=rows) == [1] * rounds + [7]


def test_requests_that_start_apart_choose_in_the_same_round() -> None:
    """So that large batches do not choose in nearly every round."""
    bandit, rule = scripted([ONE], "request")
    bandit.start(0)
    play(bandit, 3)
    bandit.start(1)
    play(bandit, 9, rows=2)
    assert [len(view.contexts) for view in rule.views] == [1, 1, 2]


def test_a_new_request_chooses_at_once_and_its_rule_starts_anew() -> None:
    bandit, rule = scripted([ONE, THREE], "request")
    bandit.start(0)
    play(bandit, 2)
    bandit.start(0)
    play(bandit, 1)
    bandit.start(0)
    play(bandit, 1)
    assert [view.incumbent.item() for view in rule.views] == [-1, -1, -1]
    first, second, third = rule.started
    assert first == third != second


def test_a_new_task_or_all_traffic_goes_on_where_a_request_starts() -> None:
    bandit, rule = scripted([ONE], "global")
    bandit.start(0)
    play(bandit, 2)
    bandit.start(0)
    play(bandit, 2)
    assert len(rule.views) == 1
    assert not rule.started


def test_a_late_round_shows_nothing_of_the_next_request_in_its_row() -> None:
    """Its draft's entropy is not a feature of the next request."""
    bandit, rule = scripted([SEVEN], "request")
    bandit.start(0)
    choice = bandit.choose(signals([7]))
    depths = choice.depths.tolist()
    bandit.start(0)
    bandit.learn(record(depths, depths), choice.memo)
    bandit.choose(signals([7]))
    np.testing.assert_array_equal(rule.views[1].features[0, 1:], rule.views[0].features[0, 1:])


def test_limits_cut_the_depth_and_not_the_choice_of_the_arm() -> None:
    """A request that nears its end has low limits, and the arm is kept for the requests after it."""
    bandit, rule = scripted([SEVEN])
    bandit.start(0)
    play(bandit, 8)
    assert bandit.choose(signals([2])).depths.tolist() == [2]
    assert rule.views[-1].playable[0, SEVEN]


def test_reasons_say_what_is_off() -> None:
    bandit, _ = scripted([OFF, THREE])
    bandit.start(0)
    assert bandit.choose(signals([7])).reasons.tolist() == [Reason.OFF]
    play(bandit, 7)
    assert bandit.choose(signals([7])).reasons.tolist() == [Reason.POLICY]


def test_rounds_decided_without_the_bandit_teach_nothing() -> None:
    """`learn` without `choose`, because a guard decided; and rounds that ran at another depth than chosen."""
    bandit, _ = scripted([SEVEN])
    bandit.start(0)
    bandit.learn(record([7], [7]))
    for _ in range(12):
        choice = bandit.choose(signals([7]))
        bandit.learn(record([0], [0]), choice.memo)
    assert not bandit.learned()["sums.all"].any()


def test_stop_rules_of_arms_learn_from_all_rounds() -> None:
    rule = AdaEdlStop()
    bandit, _ = scripted([0], arms=Arms([0, 7], stops=[None, rule]))
    before = rule.threshold
    bandit.learn(record([7], [0]))
    assert rule.threshold > before


def test_long_episodes_do_not_keep_all_of_their_rounds() -> None:
    bandit, _ = scripted([SEVEN], dwell=1000)
    choice = bandit.choose(signals([7]))
    first = record([7], [7])
    alive = weakref.ref(first)
    bandit.learn(first, choice.memo)
    del first
    play(bandit, 100)
    assert alive() is None
    assert bandit.learned()["sums.all"][0, 0, SEVEN, 0] == 101.0


def test_rounds_in_which_not_all_rows_ran_teach_nothing() -> None:
    bandit, _ = scripted([SEVEN])
    choice = bandit.choose(signals([7, 7]))
    bandit.learn(record([7], [7]), choice.memo)
    assert not bandit.learned()["sums.all"].any()


@pytest.mark.parametrize("scope", ["request", "task", "global"])
def test_a_late_record_is_credited_to_its_decision(scope: str) -> None:
    """Two rounds late, and of requests that have ended, sums are the same as at once."""
    late, at_once = scripted([ONE, SEVEN, THREE], scope)[0], scripted([ONE, SEVEN, THREE], scope)[0]
    waiting = []
    for number in range(1, 40):
        if number % 13 == 1:
            task = number % 2
            late.start(0)
            at_once.start(0)
        for bandit in (late, at_once):
            choice = bandit.choose(signals([7], tasks=[task]))
            depths = choice.depths.tolist()
            ran = record(depths, [min(2, depths[0])]), choice.memo
            if bandit is at_once:
                bandit.learn(*ran)
            else:
                waiting.append(ran)
                if len(waiting) > 2:
                    late.learn(*waiting.pop(0))
    for ran in waiting:
        late.learn(*ran)
    assert at_once.learned()["sums.all"].any()
    for name, sums in at_once.learned().items():
        np.testing.assert_allclose(late.learned()[name], sums)


def test_rounds_of_a_finished_request_count_for_its_task_and_not_for_the_next_request() -> None:
    bandit, rule = scripted([SEVEN, ONE], "request")
    bandit.start(0)
    play(bandit, 3, task=1)
    bandit.finish(0)
    bandit.start(0)
    assert bandit.learned()["sums.task"][1, 0, SEVEN, 0] == 3.0
    play(bandit, 12, accepted=0)
    assert bandit.learned()["sums.task"][1, 0, SEVEN, 0] == 3.0
    assert rule.views[-1].ratio[0, ONE] < 1.0


def test_all_rounds_of_a_decision_are_credited_and_counted() -> None:
    """A decision may serve several rounds. Episodes are as long as if each round had been decided anew."""
    anew, reused = scripted([ONE, THREE])[0], scripted([ONE, THREE])[0]
    depths = []
    for number in range(1, 25):
        if number % 4 == 1:
            choice = reused.choose(signals([7]))
        depths.append(choice.depths.item())
        reused.learn(record(choice.depths.tolist(), choice.depths.tolist()), choice.memo)
    assert depths == play(anew, 24)
    np.testing.assert_allclose(reused.learned()["sums.all"], anew.learned()["sums.all"])


def test_a_rule_observes_rounds_with_the_memo_of_the_choice_that_led_to_them() -> None:
    """However late the rounds are recorded, and where the same arm is chosen again."""
    bandit, rule = scripted([ONE, ONE, THREE])
    waiting = []
    for _ in range(30):
        choice = bandit.choose(signals([7]))
        depths = choice.depths.tolist()
        waiting.append((record(depths, depths), choice.memo))
        if len(waiting) > 3:
            bandit.learn(*waiting.pop(0))
    for ran in waiting:
        bandit.learn(*ran)
    bandit.learned()
    rounds = {1: 0, 2: 0, 3: 0}
    for choice, observed in rule.observed:
        rounds[choice] += observed.rounds
        assert np.flatnonzero(observed.sums[0, :, 0]).tolist() == ([ONE, THREE] if choice == 3 else [ONE])
    assert rounds == {1: 8, 2: 16, 3: 6}


def test_a_lagging_drafter_is_charged_to_the_arms_that_need_it() -> None:
    bandit, rule = scripted([OFF])
    bandit.start(0)
    bandit.choose(signals([7], cache_gap=[2000]))
    assert rule.views[0].staying[0, OFF] == 1.0
    assert (rule.views[0].staying[0, ONE:] < 0.95).all()


def test_deeper_arms_are_entered_from_below_and_limits_hold() -> None:
    arms, unseen, seen = Arms(TIERS), np.array([[np.inf, 0.0, 0.0, 0.0]]), np.array([[np.inf, 9.0, 9.0, 0.0]])
    assert playable(unseen, arms, np.array([7]))[0].tolist() == [True, True, False, False]
    assert playable(seen, arms, np.array([7]))[0].tolist() == [True, True, True, True]
    assert playable(seen, arms, np.array([2]))[0].tolist() == [True, True, False, False]


def test_some_arm_is_playable_whatever_the_limits() -> None:
    """Without off, and with arms that are all deeper than the limit."""
    assert playable(np.zeros((1, 2)), Arms([3, 7]), np.array([1]))[0].tolist() == [True, False]
