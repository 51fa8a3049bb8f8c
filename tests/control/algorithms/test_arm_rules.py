"""The four rules: when each explores, and what it exploits."""

from __future__ import annotations

import numpy as np

from adaptspec.arrays import FloatArray
from adaptspec.control.algorithms.arm_ledger import ContextSums
from adaptspec.control.algorithms.arm_rules import ArmRule, Exp3, LinUcb, Thompson, Ucb
from adaptspec.control.algorithms.arms import Arms
from adaptspec.control.algorithms.request_features import RequestFeatures
from tests.control.algorithms.makers import OFF, ONE, SEVEN, THREE, TIERS, ledger, view

INF = np.inf
SEEN, RATIO = (INF, 50.0, 50.0, 50.0), (1.0, 1.2, 1.4, 1.1)


def rounds_of(ratios: tuple[float, ...], seen: tuple[int, ...] = (OFF, ONE, THREE, SEVEN)) -> ContextSums:
    """Eight rounds of context 0 in which the `seen` arms had these ratios."""
    sums = np.zeros((1, 4, 6))
    for arm in seen:
        ratio = ratios[arm]
        sums[0, arm] = 8.0 * np.array([1.0, ratio, 1.0, ratio**2, ratio, 1.0])
    return ContextSums(np.array([0]), 0, 8, sums)


def ucb(seen: tuple[float, ...], ratio: tuple[float, ...], optimism: float = 0.3, off_rounds: float = 0.0) -> int:
    return int(Ucb(optimism).choose(view(seen, ratio, off_rounds=off_rounds)).arms[0])


def test_noise_that_arms_share_is_no_reason_to_explore() -> None:
    """All arms were seen in the same rounds: the best ratio is played, with any optimism and any draw."""
    assert ucb((INF, 20.0, 20.0, 20.0), (1.0, 1.2, 1.3, 1.25), optimism=5.0) == THREE
    drawn = Thompson().choose(view((INF, 5.0, 5.0, 5.0), (1.0, 1.2, 1.4, 1.3), contexts=100))
    assert (drawn.arms == THREE).all()


def test_the_error_of_the_best_arm_is_no_reason_to_stay_with_it() -> None:
    """An arm gets a bonus for the rounds that it has less than the best arm, which gets none."""
    assert ucb((INF, 20.0, 20.0, 10.0), (1.0, 1.2, 1.3, 1.15), optimism=1.0) == SEVEN


def test_ucb_tries_an_arm_again_once_off_was_played_for_long() -> None:
    seen, ratio = (INF, 3.0, 3.0, 3.0), (1.0, 0.8, 0.7, 0.6)
    assert ucb(seen, ratio) == OFF
    assert ucb(seen, ratio, optimism=0.6, off_rounds=1e6) != OFF


def test_ucb_counts_the_prior_round() -> None:
    """Without it an arm that was never seen would have an infinite bonus, and wrong drafts would never end."""
    assert ucb((INF, 0.0, 0.0, 0.0), (1.0, 0.2, 0.2, 0.2), off_rounds=100.0) == OFF


def test_rules_choose_among_playable_arms_only() -> None:
    limited = view(SEEN, (1.0, 1.1, 3.0, 4.0), contexts=50)
    limited.playable[:, THREE:] = False
    rules: list[ArmRule] = [Ucb(), Thompson(scale=5.0), Exp3(ledger(rows=50))]
    for rule in rules:
        assert set(rule.choose(limited).arms.tolist()) <= {OFF, ONE}


def test_a_choice_explores_unless_it_is_the_best_arm_seen() -> None:
    assert not Ucb().choose(view(SEEN, RATIO)).exploring[0]
    unseen = Ucb(optimism=5.0).choose(view((INF, 50.0, 50.0, 0.0), RATIO))
    assert (unseen.arms[0], unseen.exploring[0]) == (SEVEN, True)


def test_thompson_draws_arms_as_often_as_they_may_be_best() -> None:
    clear = Thompson().choose(view((INF, 400.0, 400.0, 400.0), (1.0, 1.2, 1.9, 1.1), contexts=200))
    assert (clear.arms == THREE).all()
    close = Thompson(seed=3).choose(view((INF, 400.0, 400.0, 3.0), (1.0, 1.2, 1.5, 1.5), contexts=500))
    assert all((close.arms == arm).mean() > 0.2 for arm in (THREE, SEVEN))


def shares(rule: ArmRule, ratio: tuple[float, ...] = RATIO, times: int = 400) -> FloatArray:
    """How often context 0 gets each arm."""
    drawn = [int(rule.choose(view(SEEN, ratio)).arms[0]) for _ in range(times)]
    return np.bincount(drawn, minlength=4) / times


def test_exp3_divides_its_corrections_by_the_chance_of_seeing_an_arm() -> None:
    """The memo has, after the ratios, the share of draws that show each arm."""
    choice = Exp3(ledger(rows=200)).choose(view(SEEN, RATIO, contexts=400))
    assert len(np.unique(choice.arms)) > 1
    np.testing.assert_allclose(choice.memo[:, :4], np.tile(RATIO, (400, 1)))
    revealed = Arms(TIERS).reveals[choice.arms].mean(axis=0)
    np.testing.assert_allclose(revealed, choice.memo[:, 4:].mean(axis=0), atol=0.06)


def test_exp3_moves_to_the_arm_that_earns_more_than_was_believed() -> None:
    """And a request that starts in the context begins without the corrections of the last one."""
    rule = Exp3(ledger(), rate=1.0)
    before = shares(rule)
    for _ in range(20):
        choice = rule.choose(view(SEEN, RATIO))
        rule.observe(rounds_of((1.0, 1.2, 1.4, 2.6), (ONE, THREE, SEVEN)), choice.memo)
    assert shares(rule)[SEVEN] > 0.9 > before[SEVEN]
    rule.start(0)
    np.testing.assert_allclose(shares(rule), before, atol=0.1)


def test_exp3_does_not_correct_off() -> None:
    rule = Exp3(ledger(), rate=1.0)
    for _ in range(20):
        choice = rule.choose(view(SEEN, RATIO))
        rule.observe(rounds_of((9.0, 1.2, 1.4, 1.1), (OFF,)), choice.memo)
    assert shares(rule)[OFF] < 0.1


def features(task: int, entropy: float = 0.0) -> FloatArray:
    x = np.zeros((1, RequestFeatures(4, 3).count))
    x[0, task], x[0, 4] = 1.0, entropy
    return x


def linucb() -> LinUcb:
    return LinUcb(ledger(tasks=3), RequestFeatures(4, 3))


def test_linucb_gives_each_moment_its_arm() -> None:
    """Depth 7 pays where the draft is certain, depth 1 where it is not, and nothing pays in another task."""
    rule = linucb()
    for _ in range(30):
        rule.observe(rounds_of((1.0, 1.3, 1.6, 2.2)), features(0, 0.0))
        rule.observe(rounds_of((1.0, 1.2, 0.9, 0.5)), features(0, 1.0))
        rule.observe(rounds_of((1.0, 0.8, 0.6, 0.4)), features(1, 0.0))
    moments = (features(0, 0.0), features(0, 1.0), features(1, 0.0))
    known = (view(SEEN, (1.0, 1.0, 1.0, 1.0), features=x) for x in moments)
    assert [int(rule.choose(one).arms[0]) for one in known] == [SEVEN, ONE, OFF]


def test_linucb_starts_from_the_ratios_of_the_ledger() -> None:
    assert linucb().choose(view(SEEN, (1.0, 0.8, 1.7, 0.6), features=features(2))).arms[0] == THREE


def test_linucb_knows_off_whatever_it_observes() -> None:
    rule = linucb()
    for _ in range(30):
        rule.observe(rounds_of((0.2, 0.8, 0.7, 0.6)), features(0))
    assert rule.choose(view(SEEN, (1.0, 0.8, 0.7, 0.6), features=features(0))).arms[0] == OFF


def test_linucb_charges_catching_up_to_what_it_has_learned() -> None:
    rule = linucb()
    for _ in range(200):
        rule.observe(rounds_of((1.0, 1.2, 1.3, 1.4)), features(0))
    lagging = view(SEEN, (1.0, 0.6, 0.65, 0.7), features=features(0))
    lagging.staying[:, ONE:] = 0.5
    assert rule.choose(lagging).arms[0] == OFF
    assert rule.choose(view(SEEN, (1.0, 1.2, 1.3, 1.4), features=features(0))).arms[0] == SEVEN


def rounds_until_linucb_drafts(ratio: float, most: int) -> int:
    """Rounds at off, up to `most`, after which an arm that was never seen is tried; its prior has this ratio."""
    rule, new = linucb(), view((INF, 0.0, 0.0, 0.0), (1.0, ratio, 0.5, 0.3), spread=0.3, features=features(0))
    for rounds in range(0, most, 8):
        if rule.choose(new).arms[0] == ONE:
            return rounds
        rule.observe(rounds_of((1.0, 0.0, 0.0, 0.0), (OFF,)), features(0))
    return most


def test_linucb_does_not_stop_trying() -> None:
    """An arm whose prior is a little too low is tried after a while, a lower one later: its bound grows with time."""
    assert 0 < rounds_until_linucb_drafts(0.9, 2000) < rounds_until_linucb_drafts(0.85, 2000) < 2000


def test_linucb_does_not_try_what_hardly_pays_at_best() -> None:
    assert rounds_until_linucb_drafts(0.5, 2000) == 2000
