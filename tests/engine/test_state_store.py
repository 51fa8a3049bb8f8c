"""The state directory: nothing untrusted is ever used, and a disk that fails costs no more than what is not saved."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptspec.control.state import LearnedState, PolicyState, to_bytes
from adaptspec.engine.state_store import FILE, StateStore
from adaptspec.errors import StateError


def states(value: float = 1.0) -> dict[str, PolicyState]:
    return {"p": PolicyState("s", {"n": np.array([value, 2.0])})}


def store(folder: Path, pair: str = "pair") -> StateStore:
    return StateStore(folder, pair)


def test_what_was_saved_is_there_after_a_restart(tmp_path: Path) -> None:
    """And a second engine cannot use the directory meanwhile."""
    folder = tmp_path / "deep" / "state"
    first = store(folder)
    assert first.load() is None
    first.save(states())
    with pytest.raises(StateError, match="in use"):
        store(folder)
    first.close()
    second = store(folder)
    loaded = second.load()
    second.close()
    assert loaded is not None
    assert loaded.policies["p"].arrays["n"].tolist() == [1.0, 2.0]


def test_nothing_new_is_not_written_again(tmp_path: Path) -> None:
    """An idle server leaves the disk alone, after a restart too."""
    for _ in range(2):
        one = store(tmp_path)
        one.load()
        one.save(states())
        one.close()
        (tmp_path / FILE).touch()
        os.utime(tmp_path / FILE, (1.0, 1.0))
    one = store(tmp_path)
    one.load()
    one.save(states())
    assert (tmp_path / FILE).stat().st_mtime == 1.0
    one.save(states(3.0))
    assert (tmp_path / FILE).stat().st_mtime > 1.0
    one.close()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no learned state"),
        (to_bytes(LearnedState("pair", states()))[:-20], "no learned state"),
        (to_bytes(LearnedState("pair", states())).replace(b"2.0", b"NaN"), "NaN"),
        (to_bytes(LearnedState("pair", states())).replace(b"2.0", b"3.0"), "digest"),
        (to_bytes(LearnedState("llama+tiny", states())), "other models"),
    ],
)
def test_what_cannot_be_trusted_is_put_aside(tmp_path: Path, caplog: Any, content: bytes, reason: str) -> None:
    """Truncated, NaN, damaged and foreign files: renamed, the reason in the log, and saving goes on."""
    for count in (1, 2):
        (tmp_path / FILE).write_bytes(content)
        one = store(tmp_path)
        assert one.load() is None
        one.save(states(4.0))
        assert (one.quarantined, one.failed_saves) == (1, 0)
        one.close()
        assert (tmp_path / f"{FILE}.quarantined-{count}").read_bytes() == content
    assert reason in caplog.text
    assert "learning starts anew" in caplog.text
    one = store(tmp_path)
    assert one.load() is not None
    one.close()


def test_a_full_disk_is_a_line_in_the_log(tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old state stays, and the next save makes up for it."""
    one = store(tmp_path)
    one.save(states(1.0))

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        one.save(states(2.0))
    assert "No space left on device" in caplog.text
    assert one.failed_saves == 1
    state = one.load()
    assert state is not None
    assert state.policies["p"].arrays["n"][0] == 1.0
    one.save(states(2.0))
    state = one.load()
    assert state is not None
    assert state.policies["p"].arrays["n"][0] == 2.0
    one.close()


def test_a_directory_that_cannot_be_used_is_said_at_the_start(tmp_path: Path) -> None:
    """Not after an hour of learning."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="choose another"):
        store(tmp_path / "file" / "state")


def test_names_that_are_nearly_those_of_files_put_aside_are_left_alone(tmp_path: Path) -> None:
    """Somebody has renamed one."""
    for name in ("x9", "²", "7", "3.bak"):
        (tmp_path / f"{FILE}.quarantined-{name}").write_bytes(b"old")
    (tmp_path / FILE).write_bytes(b"broken")
    one = store(tmp_path)
    assert one.load() is None
    one.close()
    assert (tmp_path / f"{FILE}.quarantined-8").read_bytes() == b"broken"
