"""`choose:` of bandits in policy files: arms of every kind are built and run, mistakes are said."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.control.language.loader import build_policy, parse_policy_spec
from adaptspec.control.policy import Policy
from adaptspec.control.tasks import TaskNames
from tests.control.helpers import record, signals, table
from tests.policies.world import HEADER

BODY = """\
  drafters: [draft-model, ngram]
  choose:
    algorithm: %s
    scope: %s
    arms:
      - {depth: 0}
      - {depth: 3}
      - {depth: 7, stop: {rule: confidence, threshold: 0.6}}
      - {depth: 3, drafter: ngram}
  guard: {never-slower: off}
"""


def build(text: str) -> Policy:
    return build_policy(parse_policy_spec(HEADER + text), table(), 4, TaskNames(("code",)))


@pytest.mark.parametrize("scope", ["request", "task", "global"])
@pytest.mark.parametrize("algorithm", ["ucb", "thompson", "exp3", "linucb"])
def test_arms_of_every_kind_are_played_and_kept(algorithm: str, scope: str) -> None:
    """Depths, stop rules and drafters, with requests that come and go."""
    policy = build(BODY % (algorithm, scope))
    assert policy.drafters == ("draft-model", "ngram")
    assert policy.max_depth == 7
    rng = np.random.default_rng(1)
    played: set[tuple[int, int]] = set()
    for number in range(1200):
        if number % 40 == 0:
            for row in range(4):
                policy.start(row)
            tasks = rng.integers(2, size=4).tolist()
        limits = rng.integers(0, 8, 4)
        decision = policy.decide(signals(limits.tolist(), tasks=tasks))
        assert (decision.depths <= limits).all()
        free = limits == 7
        played.update(zip(decision.drafter[free].tolist(), decision.depths[free].tolist(), strict=True))
        accepted = [int(rng.integers(0, d + 1)) for d in decision.depths]
        ran = record(decision.depths.tolist(), accepted, drafter=decision.drafter.tolist(), tasks=tasks)
        policy.learn(ran, decision.memo)
    assert len(played) >= 2
    state = policy.learned()
    fresh = build(BODY % (algorithm, scope))
    fresh.restore(state)
    for name, value in fresh.learned().items():
        np.testing.assert_array_equal(value, state[name])
