"""`draft-temperature` of policy files: two temperatures reach the drafter with the decision, those of each policy."""

from __future__ import annotations

import pytest

from adaptspec.control.language.loader import build_policy, parse_policy_spec
from adaptspec.errors import PolicyError
from tests.control.helpers import signals, table
from tests.policies.world import HEADER

STATIC = HEADER + "  choose: {algorithm: static, depth: 3}\n"


@pytest.mark.parametrize(
    ("written", "ends"),
    [("{mode: fixed, value: 0.7}", [0.7, 0.7]), ("{mode: dynamic, range: [0.6, 1.3]}", [0.6, 1.3])],
)
def test_a_decision_has_the_temperatures_of_its_policy(written: str, ends: list[float]) -> None:
    policy = build_policy(parse_policy_spec(f"{STATIC}  draft-temperature: {written}\n"), table(), 4)
    decided = policy.decide(signals([7, 0])).draft_temperature
    assert decided is not None
    assert decided.tolist() == [ends, ends]
    assert policy.decide(signals([0, 0])).draft_temperature is None, "no row drafts"


def test_no_temperature_leaves_the_draft_as_it_is() -> None:
    assert build_policy(parse_policy_spec(STATIC), table(), 4).decide(signals([7])).draft_temperature is None


@pytest.mark.parametrize("ends", ["[1.2, 0.8]", "[0.0, 1.0]", "[0.5, 9.0]"])
def test_a_range_goes_from_low_to_high(ends: str) -> None:
    text = f"{STATIC}  draft-temperature: {{mode: dynamic, range: {ends}}}\n"
    with pytest.raises(PolicyError, match=r"p:6:\d+: spec\.draft-temperature\.range: write \[low, high\] with 0\.1"):
        parse_policy_spec(text, "p")
