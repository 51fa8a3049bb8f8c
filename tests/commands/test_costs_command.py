"""`adaptspec costs show`: what was measured can be looked at."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from adaptspec.cli import main
from adaptspec.simulation import machine

SHIPPED = Path(machine.__file__).parent / "profiles" / "cpu-2-cores.json"


def test_tables_are_shown_with_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the cache, a file that is no table is passed over; asked for, it is an error."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["costs", "show"]) == 0
    assert "no costs were measured yet" in capsys.readouterr().out
    folder = tmp_path / "adaptspec" / "costs"
    folder.mkdir(parents=True)
    bad, good = folder / "x.json", shutil.copy(SHIPPED, folder)
    bad.write_text("[]")
    assert main(["costs", "show", "--json"]) == 0
    shown = capsys.readouterr()
    assert f"{bad}: cannot be used" in shown.err
    told = json.loads(shown.out)
    assert told["folder"] == str(folder)
    (table,) = told["tables"]
    assert table["path"] == str(good)
    assert table["costs"]["rows"] == json.loads(SHIPPED.read_text())["rows"]
    assert main(["costs", "show", str(good), "--markdown"]) == 0
    assert "| rows | 1 token | 2 tokens |" in capsys.readouterr().out
    assert main(["costs", "show", str(bad)]) == 2
