"""policies/README.md: the reference is the schema's, and what its recipes say works."""

from __future__ import annotations

import re

import pytest

from adaptspec.control.language.build import build_policy, parse_policy_spec
from adaptspec.control.language.spec import schema
from adaptspec.control.tasks import Labels
from tests.control.helpers import table
from tests.policy_reference import MARK, README, reference

BY_HAND, _, GENERATED = README.read_text(encoding="utf-8").partition(MARK)
HEAD, *RECIPES = re.findall(r"```yaml\n(.*?)```", BY_HAND, re.DOTALL)


def test_the_reference_is_the_schema() -> None:
    assert GENERATED.strip() == reference(schema()).strip(), "run: python -m tests.policy_reference"


def test_every_part_of_the_language_has_a_section_and_every_link_leads_to_one() -> None:
    ids = re.findall(r'<a id="(\w+)">', GENERATED)
    assert sorted(ids) == sorted({*schema()["$defs"], "PolicySpec"})
    assert set(re.findall(r"\]\(#(\w+)\)", BY_HAND + GENERATED)) <= set(ids)


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_are_policies(recipe: str) -> None:
    labels = Labels()
    build_policy(parse_policy_spec(HEAD + recipe, "recipe", labels), table(), 2, labels)
