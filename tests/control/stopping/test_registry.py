"""Every rule a policy can name is built from its spec, with or without a chooser that teaches a calibration."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import TypeAdapter

from adaptspec.control.calibration import Calibration
from adaptspec.control.choosers.chooser import Choice, Outlook
from adaptspec.control.stopping.registry import StopSpec
from adaptspec.control.stopping.stop import StopRule
from tests.control.helpers import record

SPECS = {
    "none": {},
    "confidence": {"threshold": 0.5},
    "entropy": {"threshold": 1.0},
    "adaedl": {},
    "svip": {},
    "marginal-goodput": {},
}


def build(rule: str, calibration: Calibration | None) -> StopRule:
    spec = TypeAdapter(StopSpec).validate_python({"rule": rule, **SPECS[rule]})
    built: StopRule = spec.build(calibration)
    return built


def choice() -> Choice:
    verify = 1e-3 + 1e-4 * np.arange(22.0)
    outlook = Outlook(800.0, np.full((3, 7), 0.8), 2e-4, 0.0, verify)
    return Choice(np.full(3, 7), np.zeros(3, dtype=np.int64), outlook)


@pytest.mark.parametrize("rule", SPECS)
@pytest.mark.parametrize("taught", [True, False])
def test_every_rule_is_built_and_takes_note_of_rounds(rule: str, taught: bool) -> None:
    built = build(rule, Calibration() if taught else None)
    for _ in range(20):
        built.learn(record([3, 3, 3], [1, 0, 3]))
    stop = built.begin(choice())
    if rule == "none":
        assert stop is None
        return
    assert stop is not None
    for step in (1, 2):
        answer = stop(step, np.arange(3), np.array([0.9, 0.5, 0.2]), np.array([0.1, 0.5, 2.0]))
        assert answer.dtype == np.bool_
        assert answer.shape == (3,)
