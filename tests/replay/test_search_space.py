"""The search space: every draw is a valid policy within the bounds that were shown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.language.build import load_policy_spec, parse_policy_spec
from adaptspec.control.language.library import shipped_policies
from adaptspec.errors import ConfigError
from adaptspec.replay.search_space import OneOf, Range, draw, parameters_of, parse_parameter
from adaptspec.replay.yaml_edit import with_values

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
