"""`adaptspec bench`: its exit status tells scripts what its text tells people."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from adaptspec.cli import main
from adaptspec.commands.bench_command import add_arguments


@pytest.mark.whole
def test_exactness_of_the_bundled_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One object on standard output, and status 0 where nothing differs by more than rounding."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["bench", "exactness", "--prompts", "1", "--tokens", "16", "--drafter", "draft-model", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["unexplained"] == 0
    assert set(result["changed_share"].values()) == {0.0}
    speculating = [one for one in result["settings"] if one["depth"] != "0"]
    assert all(one["accepted"] > 0 for one in speculating)
    assert all(one["prompts_with_rejections"] >= result["prompts"] / 2 for one in speculating)


@pytest.mark.parametrize(("unexplained", "status"), [(0, 0), (3, 1)])
def test_unexplained_divergence_fails(capsys: pytest.CaptureFixture[str], unexplained: int, status: int) -> None:
    """A job of scripts that runs the check goes red when text changed; the result is printed all the same."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = parser.parse_args(["exactness", "--json"])
    found = {"unexplained": unexplained, "settings": [], "prompts": 10, "tokens": 8, "dtype": "float32"}
    assert arguments.run(arguments, lambda *_, **__: found | {"changed_share": {}}) == status
    assert json.loads(capsys.readouterr().out)["unexplained"] == unexplained


def test_an_unknown_policy_is_an_error_of_the_users(capsys: pytest.CaptureFixture[str]) -> None:
    """One line that lists the names, no traceback."""
    assert main(["bench", "quick", "--policy", "fastest"]) == 2
    assert "shipped are: " in capsys.readouterr().err


@pytest.mark.whole
def test_policies_side_by_side_need_no_draft_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--draft none` means what it means when a server starts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    choices = ["--draft", "none", "--prompts", "1", "--tokens", "2", "--json"]
    assert main(["bench", "policies", "off", "goodput-ngram", *choices]) == 0
    assert [one["policy"] for one in json.loads(capsys.readouterr().out)["policies"]] == ["off", "goodput-ngram"]
