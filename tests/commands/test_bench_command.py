"""`adaptspec bench`: its exit status tells scripts what its text tells people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptspec.cli import main


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


def test_an_unknown_policy_is_an_error_of_the_users(capsys: pytest.CaptureFixture[str]) -> None:
    """One line that lists the names, no traceback."""
    assert main(["bench", "quick", "--policy", "fastest"]) == 2
    assert "shipped are: " in capsys.readouterr().err
