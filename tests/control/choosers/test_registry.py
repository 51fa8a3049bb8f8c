"""Every registered algorithm can be built from its shortest file and chooses within limits."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from adaptspec.control.choosers.chooser import Parts
from adaptspec.control.choosers.registry import ChooseSpec
from tests.control.helpers import record, signals, table

SHORTEST: dict[str, dict[str, object]] = {
    "static": {"depth": 2},
    "batch-table": {"schedule": [[1, 8, 2]]},
    "ema-tiers": {},
    "goodput": {},
    "ucb": {},
    "thompson": {},
    "exp3": {},
    "linucb": {},
    "nightjar": {},
    "slo": {"time-per-output-token-ms": 2.0},
}


def test_every_algorithm_is_tested_here() -> None:
    known = TypeAdapter(ChooseSpec).json_schema()["discriminator"]["mapping"]
    assert set(known) == set(SHORTEST)


@pytest.mark.parametrize("algorithm", SHORTEST)
def test_each_lives_through_rounds(algorithm: str) -> None:
    spec = TypeAdapter(ChooseSpec).validate_python({"algorithm": algorithm, **SHORTEST[algorithm]})
    parts = Parts(table(), max_rows=2, tasks=1, tiers=(1, 2, 3), drafters=("draft-model",), stops=False)
    chooser = spec.build(parts)
    chooser.start(0)
    chooser.start(1)
    for _ in range(30):
        depths = chooser.choose(signals([2, 1])).depths.tolist()
        assert 0 <= depths[0] <= 2
        assert 0 <= depths[1] <= 1
        chooser.learn(record(depths, [0, depths[1]]))
    chooser.finish(0)
    assert chooser.max_depth >= 2
