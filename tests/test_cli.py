"""The command line: help that leads somewhere, errors in one line, settings that reach what they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.cli import main


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_help_names_every_command_and_where_to_start(capsys: pytest.CaptureFixture[str]) -> None:
    """A newcomer's first look."""
    with pytest.raises(SystemExit) as status:
        main(["--help"])
    assert status.value.code == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("serve", "generate", "policy", "train", "Start with `adaptspec serve`"))


def test_errors_are_one_line_that_says_what_to_do(target_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, no traceback."""
    for arguments, hint in [
        (["generate", "x", "--model", str(target_path), "--policy", "godput"], "did you mean"),
        (["generate", "x", "--model", str(target_path.parent / "nowhere")], "nowhere"),
        (["generate", "x", "--model", str(target_path), "--temperature", "-1"], "temperature"),
        (["train", "pair", "--corpus", str(target_path.parent / "no.jsonl"), "--preset", "cpu"], "no.jsonl"),
    ]:
        assert main(arguments) == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("adaptspec: ")
        assert hint in error


def test_bad_values_are_refused_by_the_parser(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers that cannot be meant are refused before anything loads."""
    with pytest.raises(SystemExit) as status:
        main(["serve", "--max-rows", "0"])
    assert status.value.code == 2
    assert "at least 1" in capsys.readouterr().err
