"""`adaptspec generate`: text on standard output, figures beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.cli import main


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_generate_prints_the_text_and_what_speculation_did(
    target_path: Path, draft_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text goes to standard output alone, so that it can be piped; figures go to standard error."""
    arguments = ["generate", "Hello", "--model", str(target_path), "--draft", str(draft_path), "--max-tokens", "12"]
    assert main([*arguments, "--max-depth", "0"]) == 0
    plain = capsys.readouterr()
    assert main([*arguments, "--policy", "static-3"]) == 0
    drafted = capsys.readouterr()
    assert drafted.out == plain.out != ""
    assert "policy static-3" in drafted.err
    assert "0 of 0 drafted" in plain.err
