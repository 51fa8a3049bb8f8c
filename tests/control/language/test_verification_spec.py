"""The words of `verification:`: parameters reach the method, and nothing lossy slips in unsaid."""

from __future__ import annotations

import pytest

from adaptspec.control.language.loader import parse_policy_spec
from adaptspec.verification import METHODS, make_method

HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: mine}\n"
BODY = "spec:\n  choose: {algorithm: static, depth: 3}\n"


def parse(verification: str) -> tuple[str, dict[str, float]]:
    spec = parse_policy_spec(f"{HEAD}{BODY}  verification: {verification}\n", "p").verification
    return spec.method, dict(spec.parameters)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_built_from_its_words(name: str) -> None:
    """The registry and the language know the same methods, parameters and defaults; lossy ones are said to be."""
    words = f"{{method: {name}, lossy: true}}" if make_method(name).lossy else f"{{method: {name}}}"
    known, parameters = parse(words)
    assert make_method(known, parameters) == make_method(name)


def test_numbers_are_passed_on() -> None:
    assert parse("{method: threshold, lossy: true, high: 0.6, low: 0.1, top: 5}") == (
        "threshold",
        {"high": 0.6, "low": 0.1, "top": 5},
    )
    assert parse("{method: typical, lossy: true, epsilon: 0.2}")[1]["epsilon"] == 0.2
