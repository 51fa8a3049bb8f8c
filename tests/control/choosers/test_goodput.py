"""The default chooser: what it learns from, what it leaves alone, how it comes back from off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptspec.control.choosers.goodput import Goodput, GoodputSettings
from adaptspec.control.cost import CostTable
from adaptspec.types import Missed, Reason
from tests.control.helpers import QUIET, record, signals, table


def chooser(rows: int = 1, **settings: object) -> Goodput:
    made = Goodput(table(), rows, 1, GoodputSettings(**settings))  # type: ignore[arg-type]
    for row in range(rows):
        made.start(row, 0)
    return made


def live(made: Goodput, rounds: int, accepts: int, rows: int = 1, confidence: float = 0.9) -> list[list[int]]:
    """Rounds in which `accepts` drafted tokens of each row are right; the depths of each."""
    seen = []
    for _ in range(rounds):
        depths = made.choose(signals([7] * rows)).depths.tolist()
        seen.append(depths)
        made.learn(record(depths, [min(d, accepts) for d in depths], confidence=confidence))
    return seen


def test_speculates_from_the_first_round() -> None:
    assert chooser().choose(signals([7])).depths[0] >= 1


def test_goes_deep_when_all_is_accepted_without_a_stop_rule() -> None:
    """Upward exploration: a cautious prior must not keep it shallow."""
    assert live(chooser(stops=False), 60, accepts=7)[-1] == [7]


def test_goes_off_when_nothing_is_accepted_and_says_why() -> None:
    made = chooser()
    assert live(made, 60, accepts=0)[-1] == [0]
    choice = made.choose(signals([7]))
    assert choice.reasons[0] in (Reason.OFF, Reason.EXPLORE)


def test_off_tries_now_and_then_and_comes_back() -> None:
    made = chooser()
    live(made, 100, accepts=0)
    quiet = live(made, 600, accepts=0)
    assert 0 < sum(depths != [0] for depths in quiet) < 20
    assert live(made, 600, accepts=7)[-1][0] > 0


def test_off_plans_anew_once_a_try_succeeds_and_not_before() -> None:
    """Off, nothing else is news, and a plan takes a third of a small model's round."""
    made = chooser()
    live(made, 300, accepts=0)
    plans = []
    planned = made._planned
    made._planned = lambda batch: plans.append(made._learned) or planned(batch)  # type: ignore[method-assign, func-returns-value]
    quiet = live(made, 256, accepts=0)
    assert any(depths != [0] for depths in quiet)
    assert len(plans) <= 256 // 64
    while made.choose(signals([7])).depths.tolist() == [0]:
        made.learn(record([0], [0]))
    plans.clear()
    made.learn(record([1], [1]))
    now = made._learned
    made.choose(signals([7]))
    assert plans == [now]


def test_what_one_request_may_not_do_is_no_plan_for_the_next() -> None:
    """Requests of one token, or that opted out, come first; others of their task draft all the same."""
    made = chooser()
    live(made, 80, accepts=7)
    for _ in range(20):
        made.finish(0)
        made.start(0, 0)
        made.choose(signals([0]))
        made.learn(record([0], [0]))
        made.finish(0)
        made.start(0, 0)
        assert made.choose(signals([7])).depths[0] > 1
        made.learn(record([7], [7]))


def test_rows_are_judged_apart() -> None:
    made = chooser(2)
    drafting = []
    for _ in range(400):
        depths = made.choose(signals([7, 7])).depths.tolist()
        drafting.append([depth > 1 for depth in depths])
        made.learn(record(depths, [depths[0], 0]))
    right, wrong = np.mean(drafting[40:], axis=0)
    assert right == 1.0
    assert wrong <= 0.25


def test_a_lagging_cache_raises_the_bar() -> None:
    """What barely pays does not pay when a long prompt must be read first."""
    made = chooser()
    for _ in range(60):
        for accepted in (0, 1, 0):
            made.learn(record([1], [accepted]))
    near = made.choose(signals([7]))
    made.start(0, 0)
    far = made.choose(signals([7], lag=[20_000]))
    assert near.depths[0] > 0
    assert far.depths[0] == 0


def test_tiers_restrict_every_depth() -> None:
    made = chooser(tiers=(2, 5), stops=False)
    depths = {d for accepts in (7, 0, 1) for depth in live(made, 60, accepts) for d in depth}
    assert depths <= {0, 2, 5}


def test_limits_hold_for_a_plan_that_is_reused() -> None:
    made = chooser()
    live(made, 20, accepts=7)
    for limit in (7, 3, 0, 5):
        assert made.choose(signals([limit])).depths[0] <= limit


def test_limits_of_single_rows_hold_for_a_plan_that_is_reused() -> None:
    """One of them may be about to end while the others go on."""
    made = chooser(rows=3)
    live(made, 20, accepts=7, rows=3)
    assert min(made.choose(signals([7, 7, 7])).depths) > 3
    for limits in ([7, 3, 7], [0, 7, 7], [7, 7, 1]):
        depths = made.choose(signals(limits)).depths.tolist()
        assert all(depth <= limit for depth, limit in zip(depths, limits, strict=True))
        assert max(depths) > 3


def test_records_without_confidence_leave_depths_as_planned() -> None:
    """A lookup drafter says nothing of its confidence: the stop rule has no say, the plan must hold alone."""
    made = chooser(drafter="ngram")
    for _ in range(40):
        depths = made.choose(signals([7])).depths.tolist()
        made.learn(record(depths, [min(depths[0], 1)], confidence=float("nan")))
    assert not made.calibration.informed
    assert np.isfinite(made.choose(signals([7])).outlook.goodput)  # type: ignore[union-attr]


def test_no_depth_at_all_is_off() -> None:
    assert chooser(tiers=()).choose(signals([7])).depths.tolist() == [0]


def test_large_batches_are_learned_in_full() -> None:
    """More rows than the notes hold at once."""
    made = Goodput(table(), 300, 1)
    made.learn(record([1] * 300, [1] * 300))
    made.choose(signals([7] * 300))
    assert live(made, 3, accepts=7, rows=300)


def test_a_lookup_that_is_off_comes_back_by_its_scores() -> None:
    """Scored for free in every round: no try is needed to see that it would pay now."""
    made = chooser(drafter="ngram", tryouts=0.0)
    one = np.ones((1, 1), dtype=np.int64)
    depths = []
    for got in [0 * one] * 100 + [one] * 60:
        made.learn(replace(record([0], [0]), shadow=got, shadow_drafted=one))
        depths.append(int(made.choose(signals([7])).depths[0]))
    assert depths[99] == 0
    assert depths[-1] > 0


def test_catching_up_on_text_that_went_well_brings_it_back_at_once() -> None:
    made = chooser(tryouts=0.0)
    live(made, 80, accepts=0)
    assert live(made, 1, accepts=0) == [[0]]
    made.learn(replace(record([1], [1]), missed=Missed(np.array([64]), np.array([62]))))
    depths = [live(made, 1, accepts=7)[0][0] for _ in range(4)]
    assert max(depths) > 0


@pytest.mark.parametrize("rows", [2, 4])
def test_tries_cost_time_though_a_longer_pass_seems_to_take_less(rows: int) -> None:
    """Passes of one and of two tokens are learned apart. A try at a negative cost paid for the next, in every round."""
    profile = QUIET.profile()
    dips = tuple((line[0], 0.95 * line[0], *line[2:]) for line in profile.verify)
    made = Goodput(CostTable(replace(profile, verify=dips)), rows, 1, GoodputSettings(tryouts=0.001))
    for row in range(rows):
        made.start(row, 0)
    tries = 0
    for _ in range(400):
        depths = made.choose(signals([7] * rows)).depths.tolist()
        tries += made.trying
        made.learn(record(depths, [depths[0], *[0] * (rows - 1)]))  # only the first is ever right
    assert 0 < tries < 200


def test_a_new_request_alone_begins_as_others_of_its_task() -> None:
    """First plans are kept by task and lag: they are not mixed up, and follow what is learned."""
    made = Goodput(table(), 1, 3, GoodputSettings(stops=False))
    firsts: dict[int, list[int]] = {1: [], 2: []}
    for request in range(40):
        task = 1 + request % 2
        made.start(0, task)
        for turn in range(12):
            depth = int(made.choose(signals([7])).depths[0])
            if not turn:
                firsts[task].append(depth)
            made.learn(record([depth], [depth if task == 1 else 0]))
        made.finish(0)
    assert firsts[1][-1] == 7
    assert firsts[2][-1] <= 1  # a try
