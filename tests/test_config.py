"""What follows from settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.config import EngineConfig, ServeConfig


@pytest.mark.parametrize(
    ("model", "names", "name"),
    [
        ("smollm2", (), "smollm2"),
        ("bundled", (), "bundled"),
        ("org/name:Q4_K_M", (), "org/name:Q4_K_M"),
        ("smollm2", ("*", "fox", "cub"), "fox"),
        ("smollm2", ("*",), "smollm2"),
        (str(Path(__file__).parent), (), None),
    ],
)
def test_a_model_is_called_as_it_was_asked_for(model: str, names: tuple[str, ...], name: str | None) -> None:
    """A path is not shown to clients: the model has the name of its file or folder."""
    assert ServeConfig(model=model, served_model_name=names).name == name


@pytest.mark.parametrize(
    ("config", "draft", "policy"),
    [
        (EngineConfig(), "bundled", "goodput"),
        (EngineConfig(model="m"), None, "goodput-ngram"),
        (EngineConfig(model="m", draft="mtp"), "mtp", "goodput"),
        (EngineConfig(draft=None), None, "goodput-ngram"),
    ],
)
def test_the_default_policy_is_one_that_the_drafters_can_run(
    config: EngineConfig, draft: str | None, policy: str
) -> None:
    assert (config.draft_model, config.default_policy, config.policy_names) == (draft, policy, (policy,))
