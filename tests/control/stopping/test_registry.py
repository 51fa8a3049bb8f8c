"""Every rule a policy can name is built from its spec, and writes tables; the one that never stops writes none."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import TypeAdapter

from adaptspec.control.choosers.chooser import Outlook
from adaptspec.control.stopping.registry import StopSpec
from adaptspec.control.stopping.stop import StopRule
from tests.control.helpers import record
from tests.control.stopping.asking import CURVE, ask, choice, terms

SPECS = {
    "none": {},
    "confidence": {"threshold": 0.5},
    "entropy": {"threshold": 1.0},
    "adaedl": {},
    "svip": {},
    "marginal-goodput": {},
}


def build(rule: str) -> StopRule:
    spec = TypeAdapter(StopSpec).validate_python({"rule": rule, **SPECS[rule]})
    built: StopRule = spec.build()
    return built


@pytest.mark.parametrize("rule", SPECS)
def test_every_rule_is_built_and_takes_note_of_rounds(rule: str) -> None:
    built = build(rule)
    for _ in range(20):
        built.learn(record([3, 3, 3], [1, 0, 3]))
    model = terms(np.full((3, 7), 0.8), np.full((3, 10), 0.8))
    table = built.table(choice(Outlook(800.0, CURVE, (model,), {0: 3}), 3))
    assert (table is None) == (rule == "none")
    if table is not None:
        assert len(ask(table, [0.9, 0.5, 0.2], [0.1, 0.5, 2.0])) == 3
