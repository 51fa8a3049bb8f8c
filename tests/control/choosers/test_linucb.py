"""LinUCB: with a constant context a ratio of sums, with a telling one an arm for each context."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptspec.control.bandits.features import OTHERS
from adaptspec.control.bandits.ledger import Lot
from adaptspec.control.choosers.linucb import LinUcb
from adaptspec.types import FloatArray
from tests.control.bandits.makers import ladder, view

TASKS = 3
SEEN, RATIO = (np.inf, 50.0, 50.0, 50.0), (1.0, 1.0, 1.0, 1.0)
CALM = np.zeros(1, dtype=np.bool_)


def features(task: int, entropy: float = 0.0) -> FloatArray:
    x = np.zeros((1, TASKS + OTHERS))
    x[0, task], x[0, TASKS + 1] = 1.0, entropy
    return x


def teach(learner: LinUcb, x: FloatArray, earned: tuple[float, ...], times: int = 30) -> None:
    sums = np.array([[[8.0, 8.0 * e, 8.0, 0.0, 0.0, 8.0] for e in earned]])
    for _ in range(times):
        learner.observe(Lot(np.array([0]), np.array([0]), np.array([8.0]), sums), x, CALM)


def picked(learner: LinUcb, x: FloatArray) -> int:
    return int(learner.pick(replace(view(SEEN, RATIO), features=x)).arms[0])


def test_each_context_gets_its_arm() -> None:
    """Where the draft is sure depth 7 pays, where it is not only depth 1; one task is best left alone."""
    learner = LinUcb(ladder(), TASKS, discount=1.0)
    for _ in range(5):
        teach(learner, features(0, 0.0), (1.0, 1.3, 1.6, 2.2), 6)
        teach(learner, features(0, 1.0), (1.0, 1.2, 0.9, 0.5), 6)
        teach(learner, features(1, 0.0), (1.0, 0.8, 0.6, 0.4), 6)
    assert picked(learner, features(0, 0.0)) == 3
    assert picked(learner, features(0, 1.0)) == 1
    assert picked(learner, features(1, 0.0)) == 0


def test_a_surprise_and_time_make_it_forget() -> None:
    learner = LinUcb(ladder(), TASKS, discount=0.99)
    teach(learner, features(0), (1.0, 1.3, 1.6, 2.2))
    much = learner.learned()["a"][3, 0, 0]
    sums = np.zeros((1, 4, 6))
    learner.observe(Lot(np.array([0]), np.array([0]), np.array([8.0]), sums), features(0), CALM)
    assert learner.learned()["a"][3, 0, 0] == pytest.approx(much * 0.99**8)
    learner.observe(Lot(np.array([0]), np.array([0]), np.array([8.0]), sums), features(0), ~CALM)
    assert learner.learned()["a"][3, 0, 0] == pytest.approx(0.2 * much * 0.99**16)


def test_states_add_and_come_back() -> None:
    one, two, both = (LinUcb(ladder(), TASKS, discount=1.0) for _ in range(3))
    teach(one, features(0), (1.0, 1.3, 1.6, 2.2), 3)
    teach(two, features(1), (1.0, 0.8, 0.6, 0.4), 3)
    teach(both, features(0), (1.0, 1.3, 1.6, 2.2), 3)
    teach(both, features(1), (1.0, 0.8, 0.6, 0.4), 3)
    fresh = LinUcb(ladder(), TASKS)
    fresh.restore({name: value + two.learned()[name] for name, value in one.learned().items()})
    np.testing.assert_allclose(fresh.learned()["b"], both.learned()["b"])
    assert picked(fresh, features(0)) == 3
