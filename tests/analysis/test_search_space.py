"""What a search writes into a policy is read back as it was, in its place, and nothing else changes."""

from __future__ import annotations

import pytest

from adaptspec.analysis.search_space import Value, parse_parameter, with_values
from adaptspec.errors import ConfigError, PolicyError

TEXT = """# why
spec:  # the policy
  choose: {algorithm: goodput, prior: {}}
  guard:
    margin: 0.03  # of plain
"""


@pytest.mark.parametrize(
    ("path", "value", "before", "after"),
    [
        ("spec.guard.margin", 0.5, "0.03", "0.5"),
        ("spec.choose.seed", 1e-5, "{algorithm", "{seed: 0.00001, algorithm"),
        ("spec.choose.prior.weight", 3.0, "{}", "{weight: 3.0}"),
        ("spec.guard.probe.backoff", 2, "margin", "probe: {backoff: 2}\n    margin"),
        ("spec.choose.algorithm", "true", "goodput", "'true'"),
    ],
)
def test_a_value_is_put_in_its_place(path: str, value: Value, before: str, after: str) -> None:
    """Comments stay; YAML would take 1e-05 for a word and a bare true for no word."""
    assert with_values(TEXT, {tuple(path.split(".")): value}) == TEXT.replace(before, after)


@pytest.mark.parametrize(
    ("text", "path"),
    [(TEXT, "spec.choose"), (TEXT, "spec.guard.margin.deeper"), ("a: &x {b: 1}\nc: *x\n", "a.b")],
)
def test_what_cannot_be_changed_alone_is_refused(text: str, path: str) -> None:
    """Mappings, paths through values, and what an alias repeats elsewhere."""
    with pytest.raises(PolicyError):
        with_values(text, {tuple(path.split(".")): 2})


@pytest.mark.parametrize("text", ["spec.a", "spec.a=1", "spec.a=2..1", "=1..2", "spec..a=1..2", "a=x..y", "a=0..inf"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="give path=low"):
        parse_parameter(text)
