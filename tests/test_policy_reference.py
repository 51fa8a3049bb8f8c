"""policies/: the reference is the schema's, and what the recipes of README.md say works."""

from __future__ import annotations

import re
from pathlib import Path

import aiohttp
import pytest

from adaptspec.config import ServeConfig
from adaptspec.control.language.loader import build_policy, parse_policy_spec
from adaptspec.control.language.spec import schema
from adaptspec.control.tasks import TaskNames
from tests.control.helpers import table
from tests.policy_reference import REFERENCE, reference
from tests.running import Running

GENERATED = REFERENCE.read_text(encoding="utf-8")
FIRST, *OTHERS = re.findall(
    r"```yaml\n(.*?)```", REFERENCE.with_name("README.md").read_text(encoding="utf-8"), re.DOTALL
)
HEAD, SPEC = FIRST.split("spec:", 1)
RECIPES = ["spec:" + SPEC, *OTHERS]


def test_the_reference_is_the_schema() -> None:
    assert reference(schema()) == GENERATED, "run: python -m tests.policy_reference"


def test_every_part_of_the_language_has_a_section_and_every_link_leads_to_one() -> None:
    ids = re.findall(r'<a id="(\w+)">', GENERATED)
    assert sorted(ids) == sorted({*schema()["$defs"], "PolicySpec"})
    assert set(re.findall(r"\]\(#(\w+)\)", GENERATED)) <= set(ids)


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_are_policies(recipe: str) -> None:
    task_names = TaskNames()
    build_policy(parse_policy_spec(HEAD + recipe, "recipe", task_names), table(), 2, task_names)


@pytest.mark.parametrize("recipe", RECIPES)
async def test_recipes_serve_requests_without_a_draft_model(recipe: str, target_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(HEAD + recipe)
    config = ServeConfig(model=str(target_path), draft=None, policy=(str(file),), max_num_seqs=2, port=0)
    server = Running(config)
    body = {"prompt": [5, 6, 7, 5, 6], "max_tokens": 16, "ignore_eos": True, "adaptspec": {"policy": "mine"}}
    try:
        url = f"{await server.url()}/v1/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
    finally:
        await server.stop()
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["metrics"]["speculative_decoding"]["adaptspec"]["policy"] == "mine"
