"""A composed policy: the order in which its parts have their say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptspec.control.algorithms.fixed_depths import Static
from adaptspec.control.algorithms.goodput import Goodput, GoodputSettings
from adaptspec.control.composed_policy import ComposedPolicy
from adaptspec.control.limits import BatchLimits
from adaptspec.control.stopping import AdaEdlStop, MarginalGoodputStop
from tests.control.asking import drafted
from tests.control.helpers import record, signals, table


@pytest.mark.parametrize("rows", [1, 3])
def test_a_ceiling_holds_for_what_a_lookup_offers(rows: int) -> None:
    """However much it found: a request that is a long copy of its prompt is no exception."""
    algorithm = Goodput(table(), rows, 1, GoodputSettings(drafters=("ngram",)))
    batch_limits = BatchLimits.model_validate({"depth-by-batch-size": [[1, 8, 2]]})
    policy = ComposedPolicy(algorithm, ("ngram",), batch_limits=batch_limits)
    policy.start(0)
    seen = signals([7] * rows)
    decision = policy.decide(replace(seen, found=np.full((2, rows), 7)))
    assert decision.depths.tolist() == [2] * rows


def test_the_ratio_rule_works_with_a_algorithm_that_knows_no_costs() -> None:
    """Another goodput has the values: sure drafts go on, hopeless ones do not."""
    values = Goodput(table(), 1, 1)
    policy = ComposedPolicy(Static(7), ("draft-model",), stop=MarginalGoodputStop(), values=values)
    policy.start(0)
    for _ in range(40):
        policy.decide(signals([7]))
        policy.learn(record([5], [4]))
    stop = policy.decide(signals([7])).stop
    assert drafted(stop, [0.95, 0.05, 0.95]) == 2


def test_the_stop_of_a_task_learns_from_its_own_rows() -> None:
    rule = AdaEdlStop()
    policy = ComposedPolicy(Static(3), ("draft-model",), task_stops={1: rule})
    policy.start(0)
    policy.start(1)
    start = rule.threshold
    policy.learn(record([3], [0], rows=[1], tasks=[0]))
    assert rule.threshold == start
    policy.learn(record([3, 3], [0, 3], rows=[0, 1], tasks=[1, 0]))
    assert rule.threshold > start
