"""The words of `verification:`: parameters reach the method, and nothing lossy slips in unsaid."""

from __future__ import annotations

import pytest

from adaptspec.control.language.build import parse_policy_spec
from adaptspec.errors import PolicyError
from adaptspec.verification import METHODS, make_method

HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: mine}\n"
BODY = "spec:\n  choose: {algorithm: static, depth: 3}\n"


def parse(verification: str) -> tuple[str, dict[str, float]]:
    spec = parse_policy_spec(f"{HEAD}{BODY}  verification: {verification}\n", "p").verification
    return spec.method, dict(spec.parameters)


def test_the_default_is_coupled() -> None:
    spec = parse_policy_spec(HEAD + BODY, "p").verification
    assert (spec.method, dict(spec.parameters)) == ("coupled", {})


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


@pytest.mark.parametrize("name", ["threshold", "typical"])
@pytest.mark.parametrize("said", ["", ", lossy: false", ", lossy: 1"])
def test_a_lossy_method_must_be_said_to_be(name: str, said: str) -> None:
    with pytest.raises(PolicyError, match=r"p:6:\d+: spec.verification.*write 'lossy: true' beside it"):
        parse(f"{{method: {name}{said}}}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("{method: threshold, lossy: true, high: 0.2, low: 0.3}", "low is 0.3, above high"),
        ("{method: threshold, lossy: true, top: 0}", "spec.verification.top"),
        ("{method: typical, lossy: true, delta: 0.0}", "spec.verification.delta"),
        ("{method: coupled, lossy: true}", "spec.verification.lossy: unknown key"),
        ("{method: blok}", "did you mean 'block'"),
    ],
)
def test_what_does_not_fit_is_located(words: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        parse(words)
