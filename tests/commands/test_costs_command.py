"""`adaptspec costs`: what was measured can be looked at, and measured anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptspec.cli import main
from adaptspec.engine import profiler


@pytest.fixture(autouse=True)
def _quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, and a machine that counts as quiet whatever else runs on it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(profiler, "_BUSY", 1e9)


def measure(target_path: Path, draft_path: Path, *more: str) -> int:
    return main(["costs", "measure", "--model", str(target_path), "--draft", str(draft_path), "--max-rows", "2", *more])


def test_what_was_measured_is_shown_with_place_and_machine(
    target_path: Path, draft_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["costs", "show"]) == 0
    assert "no costs were measured yet" in capsys.readouterr().out
    assert measure(target_path, draft_path) == 0
    measured = capsys.readouterr().out
    assert main(["costs", "show", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["folder"] == str(tmp_path / "adaptspec" / "costs")
    (table,) = told["tables"]
    assert Path(table["path"]).parent == Path(told["folder"])
    assert table["path"] in measured
    assert 0 <= table["age_seconds"] < 600
    assert table["about"]["processor"] == profiler.processor()
    assert table["about"]["max_rows"] == 2
    assert table["costs"]["rows"] == [1, 2]
    assert main(["costs", "show", table["path"], "--markdown"]) == 0
    assert "| rows | 1 token | 2 tokens |" in capsys.readouterr().out


def test_measuring_replaces_the_table_that_servers_start_with(
    target_path: Path, draft_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is there: an old one is what the command is for."""
    assert measure(target_path, draft_path) == 0
    (path,) = (tmp_path / "adaptspec" / "costs").glob("*.json")
    body = json.loads(path.read_text())
    body["verify"] = [[1e3 for _ in line] for line in body["verify"]]
    path.write_text(json.dumps(body))
    assert measure(target_path, draft_path, "--json") == 0
    assert max(map(max, json.loads(path.read_text())["verify"])) < 1e3
    assert capsys.readouterr().out


def test_a_table_of_a_busy_machine_is_not_kept_and_that_is_told(
    target_path: Path,
    draft_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(profiler, "_BUSY", 0.0)
    assert measure(target_path, draft_path) == 1
    assert "was not kept" in capsys.readouterr().err
    assert not list(tmp_path.glob("adaptspec/costs/*"))


def test_a_file_that_is_no_table_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the cache it is passed over, asked for it is an error."""
    bad = tmp_path / "adaptspec" / "costs" / "x.json"
    bad.parent.mkdir(parents=True)
    bad.write_text("[]")
    assert main(["costs", "show"]) == 0
    assert f"{bad}: cannot be used" in capsys.readouterr().err
    assert main(["costs", "show", str(bad)]) == 2


def test_a_table_without_a_word_on_its_machine_can_be_shown(
    target_path: Path, draft_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of earlier versions, and those of `bench record --costs-out`."""
    assert measure(target_path, draft_path) == 0
    (path,) = (tmp_path / "adaptspec" / "costs").glob("*.json")
    body = json.loads(path.read_text())
    path.write_text(json.dumps({**body, "about": "medians of 7 profiles"}))
    capsys.readouterr()
    assert main(["costs", "show"]) == 0
    assert "does not say on what machine" in " ".join(capsys.readouterr().out.split())
