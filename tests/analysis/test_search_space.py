"""The search space: every draw is a valid policy within the bounds that were shown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.analysis.search_space import OneOf, Range, draw, parameters_of, parse_parameter, with_values
from adaptspec.control.language.build import load_policy_spec, parse_policy_spec
from adaptspec.control.language.library import shipped_policies
from adaptspec.control.language.yaml_source import parse_yaml
from adaptspec.errors import ConfigError, PolicyError

POLICIES = {path.stem: path for path in shipped_policies()}


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(POLICIES)), seed=st.integers(0, 2**32 - 1))
def test_every_draw_from_a_shipped_policy_is_valid(name: str, seed: int) -> None:
    """Bounds come from the schema, so it never refuses what was drawn; ints stay ints."""
    path = POLICIES[name]
    space = parameters_of(load_policy_spec(path))
    if not space:
        return
    values = draw(space, np.random.default_rng(seed))
    assert values
    ranges = {one.path: one for one in space if isinstance(one, Range)}
    for where, value in values.items():
        assert isinstance(value, int) == ranges[where].integer
        assert ranges[where].low <= float(value) <= ranges[where].high
    parse_policy_spec(with_values(path.read_text(), values))


def test_guards_and_luck_are_left_alone() -> None:
    """A guard is for days unlike the tape's; tuning it away on a good day would show no loss."""
    for path in POLICIES.values():
        for one in parameters_of(load_policy_spec(path)):
            assert "guard" not in one.path
            assert "seed" not in one.path


def test_discounts_are_varied_by_their_distance_from_one() -> None:
    """0.99 and 0.999 are as far apart as 0.9 and 0.99."""
    (found,) = [one for one in parameters_of(load_policy_spec(POLICIES["ucb"])) if one.path[-1] == "discount"]
    assert isinstance(found, Range)
    assert (1.0 - found.low) / (1.0 - found.high) == pytest.approx(16.0)
    drawn = [1.0 - float(found.draw(np.random.default_rng(seed))) for seed in range(400)]
    assert np.median(drawn) == pytest.approx(0.007, rel=0.25)


def test_users_say_ranges_and_choices() -> None:
    assert parse_parameter("spec.a=0..1") == Range(("spec", "a"), 0.0, 1.0, integer=True)
    assert parse_parameter("spec.a=0.5..1") == Range(("spec", "a"), 0.5, 1.0, integer=False)
    assert parse_parameter("spec.a=1..100").draw(np.random.default_rng(0)) in range(1, 101)
    assert parse_parameter("spec.scope=request|task") == OneOf(("spec", "scope"), ("request", "task"))


@pytest.mark.parametrize(
    "text", ["spec.a", "spec.a=1", "spec.a=2..1", "=1..2", "spec..a=1..2", "spec.a=x..y", "a=0..inf"]
)
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="give path=low"):
        parse_parameter(text)


TEXT = """# why
spec:  # the policy
  choose: {algorithm: goodput, prior: {}}
  guard:
    margin: 0.03  # of plain
"""


def test_a_value_is_replaced_and_comments_stay() -> None:
    """Also the comment on its own line."""
    changed = with_values(TEXT, {("spec", "guard", "margin"): 0.5})
    assert changed == TEXT.replace("0.03", "0.5")


def test_missing_keys_are_put_into_the_mapping_they_belong_to() -> None:
    """In flow and in block style, and through mappings that are not there yet."""
    values = {
        ("spec", "choose", "optimism"): 0.00001,
        ("spec", "choose", "prior", "weight"): 3.0,
        ("spec", "guard", "probe", "backoff"): 2,
    }
    changed = with_values(TEXT, values)
    assert "choose: {optimism: 0.00001, algorithm: goodput, prior: {weight: 3.0}}" in changed
    assert "  guard:\n    probe: {backoff: 2}\n    margin: 0.03  # of plain\n" in changed
    assert changed.startswith("# why\nspec:  # the policy\n")


@settings(max_examples=40, deadline=None)
@given(value=st.floats(0.0, 1.0), path=st.sampled_from([path.stem for path in shipped_policies()]))
def test_what_is_written_is_what_is_read(value: float, path: str) -> None:
    """To the last digit, in every shipped policy."""
    source = next(one for one in shipped_policies() if one.stem == path).read_text()
    changed = with_values(source, {("spec", "guard", "min-free-memory"): value})
    read = parse_policy_spec(changed).spec.guard.min_free_memory
    assert read == value
    assert [line for line in changed.splitlines() if line.startswith("#")] == [
        line for line in source.splitlines() if line.startswith("#")
    ]


def test_words_that_yaml_would_misread_are_quoted() -> None:
    changed = with_values(TEXT, {("spec", "choose", "algorithm"): "true"})
    data = parse_yaml(changed, "x").data
    assert isinstance(data, dict)
    assert data["spec"]["choose"]["algorithm"] == "true"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (TEXT, ("spec", "choose")),
        (TEXT, ("spec", "guard", "margin", "deeper")),
        ("a: &x {b: 1}\nc: *x\n", ("a", "b")),
    ],
)
def test_what_cannot_be_changed_alone_is_refused(text: str, path: tuple[str, ...]) -> None:
    """Mappings, paths through values, and what an alias repeats elsewhere."""
    with pytest.raises(PolicyError):
        with_values(text, {path: 2})
