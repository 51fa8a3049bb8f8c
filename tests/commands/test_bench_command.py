"""`adaptspec bench`: its exit status tells scripts what its text tells people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptspec.cli import main

LOSSY = """
apiVersion: adaptspec.dev/v1
kind: SpeculationPolicy
metadata: {name: lossy}
spec:
  choose: {algorithm: static, depth: 4}
  drafters: [draft-model]
  verification: {method: threshold, lossy: true, high: 0.0, low: 0.0}
"""


@pytest.mark.whole
@pytest.mark.parametrize("lossy", [False, True])
def test_the_exit_status_says_whether_answers_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lossy: bool
) -> None:
    """One object on standard output. A policy that keeps wrong tokens fails, and nothing else does."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    policy = tmp_path / "lossy.yaml"
    policy.write_text(LOSSY)
    more = ["--policy", str(policy)] if lossy else []
    assert main(["bench", "exactness", "--prompts", "1", "--tokens", "12", "--json", *more]) == lossy
    result = json.loads(capsys.readouterr().out)
    assert (result["setup"]["model"], result["setup"]["runner"]) == ("bundled", "torch")
    assert {row["setting"] for row in result["settings"] if row["different"]} == ({"lossy"} if lossy else set())
    speculating = [row for row in result["settings"] if row["setting"].startswith("static")]
    assert all(row["accepted"] > 0 for row in speculating)


def test_an_unknown_policy_is_an_error_of_the_users(capsys: pytest.CaptureFixture[str]) -> None:
    """One line that lists the names, no traceback."""
    assert main(["bench", "policies", "off", "fastest"]) == 2
    assert "shipped are: " in capsys.readouterr().err


@pytest.mark.whole
def test_policies_side_by_side_need_no_draft_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--draft none` means what it means when a server starts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    choices = ["--draft", "none", "--prompts", "1", "--tokens", "2", "--json"]
    assert main(["bench", "policies", "off", "goodput-ngram", *choices]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["policies"]] == ["off", "goodput-ngram"]
