"""The default algorithm: what it learns from, what it leaves alone, how it comes back from off."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from adaptspec.control.algorithms.goodput import Goodput, GoodputSettings
from adaptspec.control.cost_model import CostModel
from adaptspec.control.cost_profile import DrafterCost
from adaptspec.decision import Reason
from tests.control.helpers import QUIET, record, signals, table
from tests.trees import Grown, branching


def algorithm(rows: int = 1, **settings: object) -> Goodput:
    made = Goodput(table(), rows, 1, GoodputSettings(**settings))  # type: ignore[arg-type]
    for row in range(rows):
        made.start(row)
    return made


def live(made: Goodput, rounds: int, accepts: int, rows: int = 1, confidence: float = 0.9) -> list[list[int]]:
    """Rounds in which `accepts` drafted tokens of each row are right; the depths of each."""
    seen = []
    for _ in range(rounds):
        choice = made.choose(signals([7] * rows))
        depths = choice.depths.tolist()
        seen.append(depths)
        made.learn(record(depths, [min(d, accepts) for d in depths], confidence=confidence), choice.memo)
    return seen


def test_only_where_stopping_saves_steps_is_the_deepest_draft_asked_for() -> None:
    """A device runs all planned steps: there depth is what pays, whatever a stop rule would cut."""
    deepest = {}
    for together in (False, True):
        known = table()
        drafters = {name: replace(one, together=together) for name, one in known.profile.drafters.items()}
        made = Goodput(CostModel(replace(known.profile, drafters=drafters)), 1, 1, GoodputSettings())
        made.start(0)
        for _ in range(400):
            depths = made.choose(signals([7])).depths.tolist()
            drafted = [min(depth, 3) for depth in depths] if not together else depths
            sure = [[0.9, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1][:7]]
            kept = record(drafted, [min(one, 2) for one in drafted], confidence=0.9)
            made.learn(replace(kept, depths=np.array(depths), confidence=np.array(sure)[:, : max(drafted)]))
        deepest[together] = depths[0]
    assert deepest[False] == 7
    assert 0 < deepest[True] <= 3


def test_what_was_rejected_has_its_goodput() -> None:
    """Plain decoding beside drafts, drafts beside plain decoding: the choice is the better of the two."""
    for accepts, drafting in ((7, True), (0, False)):
        made = algorithm()
        live(made, 300, accepts)
        choice = made.choose(signals([7]))
        assert bool(choice.depths[0]) is drafting
        assert choice.expected is not None
        assert 0.0 < choice.expected.other < choice.expected.goodput


def test_what_one_request_may_not_do_is_no_plan_for_the_next() -> None:
    """Requests of one token, or that opted out, come first; others of their task draft all the same."""
    made = algorithm()
    live(made, 80, accepts=7)
    for _ in range(20):
        made.finish(0)
        made.start(0)
        made.learn(record([0], [0]), made.choose(signals([0])).memo)
        made.finish(0)
        made.start(0)
        choice = made.choose(signals([7]))
        assert choice.depths[0] > 1
        made.learn(record([7], [7]), choice.memo)


def test_a_lagging_cache_raises_the_bar() -> None:
    """What barely pays does not pay when a long prompt must be read first."""
    made = algorithm()
    for _ in range(60):
        for accepted in (0, 1, 0):
            made.learn(record([1], [accepted]))
    near = made.choose(signals([7]))
    made.start(0)
    far = made.choose(signals([7], cache_gap=[20_000]))
    assert near.depths[0] > 0
    assert far.depths[0] == 0


def test_tiers_restrict_every_depth() -> None:
    made = algorithm(tiers=(2, 5), stops=False)
    depths = {d for accepts in (7, 0, 1) for depth in live(made, 60, accepts) for d in depth}
    assert depths <= {0, 2, 5}


def test_limits_of_single_rows_hold_for_a_plan_that_is_reused() -> None:
    """One of them may be about to end while the others go on."""
    made = algorithm(rows=3)
    live(made, 20, accepts=7, rows=3)
    assert min(made.choose(signals([7, 7, 7])).depths) > 3
    for limits in ([7, 3, 7], [0, 7, 7], [7, 7, 1]):
        depths = made.choose(signals(limits)).depths.tolist()
        assert all(depth <= limit for depth, limit in zip(depths, limits, strict=True))
        assert max(depths) > 3


def test_large_batches_are_learned_in_full() -> None:
    """More rows than are learned at once."""
    made = Goodput(table(), 300, 1)
    made.learn(record([1] * 300, [1] * 300))
    made.choose(signals([7] * 300))
    assert live(made, 3, accepts=7, rows=300)


def test_an_offer_is_taken_where_it_beats_the_model() -> None:
    """What a lookup found is known before the round; for the row that is in the middle of a run it is taken deep."""
    made = algorithm(2, drafters=("draft-model", "ngram"))
    running = np.array([[0, 0], [4, 0]])
    for _ in range(12):
        choice = made.choose(signals([7, 7]))
        made.learn(replace(record([0, 0], [0, 0]), shadow=running, shadow_drafted=running), choice.memo)
    choice = made.choose(signals([7, 7], found=[6, 0]))
    while (choice.reasons == int(Reason.EXPLORE)).any():
        made.learn(record(choice.depths.tolist(), [0, 0]), choice.memo)
        choice = made.choose(signals([7, 7], found=[6, 0]))
    assert choice.depths[0] == 6
    assert choice.drafter[0] == 1
    assert (choice.drafter[1] == 0) or not choice.depths[1]


@pytest.mark.parametrize("small", [0, 2])
def test_a_third_drafter_counts(small: int) -> None:
    """Two models, of which the second is right in the end: it is found out, whether the first drafts or is off too."""
    cost = CostModel(
        replace(QUIET.profile(), drafters=dict.fromkeys(("small", "large"), QUIET.profile().drafters["draft-model"]))
    )
    made = Goodput(cost, 1, 1, GoodputSettings(drafters=("small", "ngram", "large")))
    made.start(0)
    cache_gap = np.zeros((3, 1), dtype=np.int64)
    drafted = []
    for _ in range(1400):
        choice = made.choose(replace(signals([7]), cache_gap=cache_gap, found=cache_gap))
        depth, who = int(choice.depths[0]), int(choice.drafter[0])
        drafted.append(who if depth else -1)
        kept = min(depth, small) if who == 0 else depth * (len(drafted) > 300)
        made.learn(record([depth], [kept], drafter=[who]), choice.memo)
    assert (drafted[200:300].count(0) > 80) == (small > 0)
    assert drafted[-50:].count(2) > 40


def test_what_is_off_is_tried_whatever_the_table_says() -> None:
    """A profile that prices one draft above ten plain rounds is never believed for good."""
    wrong = replace(QUIET.profile(), drafters={"draft-model": DrafterCost((1,), (0.015,), 0.0)})
    cost = CostModel(wrong)
    made = Goodput(cost, 1, 1)
    made.start(0)
    drafting = []
    for _ in range(1500):
        choice = made.choose(signals([7]))
        depth = int(choice.depths[0])
        drafting.append(depth > 0)
        told = record([depth], [depth], depths=[depth])
        cost.observe(told.work, told.timing)
        made.learn(told, choice.memo)
    assert not drafting[0]
    assert sum(drafting[-200:]) > 150


def test_a_newcomer_pays_for_reading_its_prompt() -> None:
    """It joins a plan that serves others: what its drafter has not read yet counts, as in a plan of its own."""
    made = algorithm(16, stops=False)
    live(made, 60, accepts=7, rows=16)
    depths = {}
    for unread in (0, 20_000):
        made.finish(15)
        made.start(15)
        depths[unread] = made.choose(signals([7] * 16, cache_gap=[0] * 15 + [unread])).depths.tolist()
    assert depths[0][15] > 0
    assert depths[20_000][15] == 0
    assert min(depths[20_000][:15]) > 0


def test_an_value_promises_at_least_plain_decoding() -> None:
    """A draft that is always wrong is not worth weighing against: plain decoding is."""
    made = algorithm()
    made.start(0)
    for _ in range(200):
        made.learn(record([7], [0]))
        value = made.value(signals([7]))
    assert value is not None
    plain = 1.0 / table().plain_seconds(1, 100.0)
    assert plain <= value.goodput <= 1.1 * plain
    assert value.expected(np.array([0]), None).accepted.tolist() == [0.0]


@pytest.mark.parametrize("tiers", [(), (1, 2, 3)])
def test_rounds_that_others_decided_do_not_pile_up(tiers: tuple[int, ...]) -> None:
    """A guard that is off, or a policy that is one of several, learns for hours without planning."""
    made = Goodput(table(), 1, 1, GoodputSettings(tiers=tiers))
    made.start(0)
    made.choose(signals([7]))
    sizes = []
    for _ in range(2):
        for _ in range(1024):
            made.learn(record([0], [0]))
        sizes.append(len(pickle.dumps(made)))
    assert sizes[1] <= sizes[0] + 1024


def tried_depths(made: Goodput, rounds: int, accepts: int) -> tuple[set[int], set[int]]:
    """Depths of planned rounds and of trials, in rounds that keep up to `accepts` tokens of each row."""
    planned: set[int] = set()
    tried: set[int] = set()
    for number in range(1, rounds + 1):
        choice = made.choose(signals([7, 7]))
        explores = bool((choice.reasons == int(Reason.EXPLORE)).any())
        if explores or number > 100:  # until then the planned depth settles
            (tried if explores else planned).update(choice.depths.tolist())
        drafted = choice.depths.tolist()
        made.learn(record(drafted, [min(accepts, depth) for depth in drafted]), choice.memo)
    return planned, tried


def test_neighbouring_depths_are_tried_where_only_whole_rounds_are_timed() -> None:
    """Else the times of no other depth would ever be known. One less deep and one deeper, of those allowed."""
    profile = QUIET.profile()
    drafters = {name: replace(cost, together=True) for name, cost in profile.drafters.items()}
    settings = GoodputSettings(tiers=(1, 3, 5), stops=False)
    made = Goodput(CostModel(replace(profile, drafters=drafters)), 2, 1, settings)
    planned, tried = tried_depths(made, 600, accepts=2)
    assert planned <= {3}
    assert {1, 5} <= tried


def test_larger_passes_are_tried_where_their_price_is_uncertain() -> None:
    """A profile has passes of more than four tokens five times too dear; the trial shows what they really take."""
    profile = QUIET.profile()
    dear = tuple(
        tuple(
            seconds * (5.0 if rows * tokens > 4 else 1.0) for tokens, seconds in zip(profile.tokens, line, strict=True)
        )
        for rows, line in zip(profile.rows, profile.verify, strict=True)
    )
    cost = CostModel(replace(profile, verify=dear))
    made = Goodput(cost, 2, 1, GoodputSettings(stops=False))
    depths = []
    for _ in range(400):
        choice = made.choose(signals([7, 7]))
        drafted = choice.depths.tolist()
        depths.append(max(drafted))
        outcome = record(drafted, drafted)
        cost.observe(outcome.work, outcome.timing)
        made.learn(outcome, choice.memo)
    assert max(depths[:4]) <= 3
    assert min(depths[-100:]) == 7


def test_a_trial_whose_outcome_is_lost_is_not_the_last() -> None:
    """A round that fails has no record; rounds that were decided after it show that none comes any more."""
    made, tried = algorithm(), 0
    for _ in range(600):
        choice = made.choose(signals([7]))
        if (choice.reasons == int(Reason.EXPLORE)).any():
            tried += 1
        else:
            made.learn(record(choice.depths.tolist(), [0]), choice.memo)
    assert tried > 1


def test_a_trial_leaves_the_other_rows_as_planned() -> None:
    """One row drafts, the other is off and tried: the plan of the first does not change."""
    made = algorithm(2, stops=False)
    for number in range(1, 400):
        choice = made.choose(signals([7, 7]))
        drafted = choice.depths.tolist()
        explores = choice.reasons == int(Reason.EXPLORE)
        if number > 200 and explores.any():
            assert explores.tolist() == [False, True]
            assert drafted[1] == 1
            assert drafted[0] > 1
            break
        made.learn(record(drafted, [drafted[0], 0]), choice.memo)
    else:
        pytest.fail("nothing was tried")


def test_a_chain_of_another_drafter_says_nothing_of_the_model() -> None:
    """Two drafters may add nodes to a row's tree. Its main chain is then of the one that drafted most."""
    chain_of_lookup = Grown([-1, 0, 1, -1], 3, drafters=[1, 1, 1, 0])
    chain_of_model = Grown([-1, 0, 1, -1], 3, drafters=[0, 0, 0, 1])
    counts = {}
    for name, tree in (("nothing", None), ("lookup", chain_of_lookup), ("model", chain_of_model)):
        made = algorithm(drafters=("draft-model", "ngram"), max_width=4)
        for _ in range(60 if tree else 0):
            made.learn(branching(tree, drafter=[0]))
        counts[name] = made.learned()
    for known in ("acceptance", "calibration"):
        assert np.array_equal(counts["lookup"][known], counts["nothing"][known])
        assert not np.array_equal(counts["model"][known], counts["nothing"][known])
    assert np.array_equal(counts["model"]["lookups"], counts["nothing"]["lookups"])
    assert not np.array_equal(counts["lookup"]["lookups"], counts["nothing"]["lookups"])
