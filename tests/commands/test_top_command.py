"""`adaptspec top`: its arguments. What it shows is tested in tests/top and tests/e2e."""

from __future__ import annotations

import pytest

from adaptspec.command_line import Parser
from adaptspec.commands.top_command import add_arguments


def test_the_key_comes_from_the_environment_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the list of processes everybody could read it."""
    monkeypatch.setenv("ADAPTSPEC_API_KEY", "from the environment")
    parser = Parser()
    add_arguments(parser)
    assert parser.parse_args([]).api_key == "from the environment"
    assert parser.parse_args(["--api-key", "k"]).api_key == "k"
