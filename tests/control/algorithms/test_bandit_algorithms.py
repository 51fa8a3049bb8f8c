"""The algorithms: what each explores, and what it leaves."""

from __future__ import annotations

import numpy as np

from adaptspec.control.algorithms.bandit_algorithms import Exp3, LinUcb, Thompson, Ucb
from adaptspec.control.algorithms.ledger import Observed
from adaptspec.types import FloatArray
from tests.control.algorithms.makers import ladder, ledger, view

SEEN, RATIO = (np.inf, 50.0, 50.0, 50.0), (1.0, 1.2, 1.4, 1.1)


def lot(earned: tuple[float, ...], arms: tuple[int, ...] = (0, 1, 2, 3)) -> Observed:
    """Eight rounds of the first context."""
    sums = np.zeros((1, 4, 6))
    for arm in arms:
        sums[0, arm] = 8.0 * np.array([1.0, earned[arm], 1.0, earned[arm] ** 2, earned[arm], 1.0])
    return Observed(np.array([0]), 0, 8, sums)


def ucb(seen: tuple[float, ...], ratio: tuple[float, ...], optimism: float = 0.3, plain: float = 0.0) -> int:
    return int(Ucb(ladder(), ledger(), optimism).pick(view(seen, ratio, plain=plain)).arms[0])


def test_noise_that_arms_share_is_no_reason_to_explore() -> None:
    """All seen in the same rounds: the best mean is played, whatever the optimism, and whatever is drawn."""
    assert ucb((np.inf, 20.0, 20.0, 20.0), (1.0, 1.2, 1.3, 1.25), optimism=5.0) == 2
    drawn = Thompson(ladder(), ledger()).pick(view((np.inf, 5.0, 5.0, 5.0), (1.0, 1.2, 1.4, 1.3), contexts=100))
    assert (drawn.arms == 2).all()


def test_thompson_draws_arms_as_often_as_they_may_be_best() -> None:
    clear = Thompson(ladder(), ledger()).pick(view((np.inf, 400.0, 400.0, 400.0), (1.0, 1.2, 1.9, 1.1), contexts=200))
    assert (clear.arms == 2).all()
    close = Thompson(ladder(), ledger(), seed=3).pick(
        view((np.inf, 400.0, 400.0, 3.0), (1.0, 1.2, 1.5, 1.5), contexts=500)
    )
    assert all((close.arms == arm).mean() > 0.2 for arm in (2, 3))


def test_exp3_knows_how_often_it_sees_each_arm() -> None:
    """Its corrections are divided by that: the share of draws that say something of an arm."""
    arms = ladder()
    pick = Exp3(arms, ledger(rows=200)).pick(view(SEEN, RATIO, contexts=400))
    assert len(np.unique(pick.arms)) > 1
    np.testing.assert_allclose(arms.reveals[pick.arms].mean(axis=0), pick.memo[:, len(arms) :].mean(axis=0), atol=0.06)


def features(task: int, entropy: float = 0.0) -> FloatArray:
    x = np.zeros((1, ledger(tasks=3).features))
    x[0, task], x[0, 4] = 1.0, entropy
    return x


def linucb(discount: float = 1.0) -> LinUcb:
    return LinUcb(ladder(), ledger(tasks=3, discount=discount))


def teach(index: LinUcb, x: FloatArray, earned: tuple[float, ...], times: int = 30) -> None:
    for _ in range(times):
        index.observe(lot(earned), x)


def test_linucb_gives_each_moment_its_arm() -> None:
    """Where the draft is sure depth 7 pays, where it is not only depth 1; one task is best left alone."""
    index = linucb()
    for _ in range(5):
        teach(index, features(0, 0.0), (1.0, 1.3, 1.6, 2.2), 6)
        teach(index, features(0, 1.0), (1.0, 1.2, 0.9, 0.5), 6)
        teach(index, features(1, 0.0), (1.0, 0.8, 0.6, 0.4), 6)
    state = (np.inf, 50.0, 50.0, 50.0), (1.0, 1.0, 1.0, 1.0)
    picked = [index.pick(view(*state, features=features(*x))).arms[0] for x in ((0, 0.0), (0, 1.0), (1, 0.0))]
    assert picked == [3, 1, 0]
