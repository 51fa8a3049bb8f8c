"""`adaptspec state`: what was learned can be looked at, and added up over replicas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adaptspec.cli import main
from adaptspec.control.learned_state import FILE, PolicyState, StateStore, read_state


def replica(folder: Path, value: float, pair: str = "pair") -> Path:
    store = StateStore(folder, pair)
    store.save({"goodput": PolicyState("s", {"acceptance": np.full((2, 3), value)})})
    store.close()
    return folder


def test_states_of_replicas_are_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Directories or files; the result is a state that a server can start from."""
    one, two = replica(tmp_path / "one", 1.5), replica(tmp_path / "two", 2.0)
    out = tmp_path / "new" / FILE
    out.parent.mkdir()
    assert main(["state", "merge", str(one), str(two / FILE), "-o", str(out)]) == 0
    assert read_state(out).policies["goodput"].arrays["acceptance"].tolist() == [[3.5] * 3] * 2
    store = StateStore(out.parent, "pair")
    assert store.load() is not None
    store.close()
    capsys.readouterr()
    assert main(["state", "show", str(out.parent)]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("goodput", "acceptance", "2 x 3", "21.0", "pair"))
