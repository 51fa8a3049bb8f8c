"""Editing policy files: one value changes, everything else stays to the letter."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.language.build import parse_policy_spec
from adaptspec.control.language.library import shipped_policies
from adaptspec.control.language.yaml_source import parse_yaml
from adaptspec.errors import PolicyError
from adaptspec.replay.yaml_edit import with_values

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
