"""The state directory: old or new whatever happens while writing, and nothing untrusted is ever used."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptspec.control import state_store
from adaptspec.control.state import LearnedState, PolicyState, to_bytes
from adaptspec.control.state_store import FILE, StateStore, write_file
from adaptspec.errors import StateError

KILLS = """
import itertools, os, random, signal, sys, time
from pathlib import Path
from adaptspec.control.state_store import write_file
path = Path(sys.argv[1])
contents = [bytes([65 + i]) * 30_000 for i in range(8)]
write_file(path, contents[0])
landed = set()
dice = random.Random(0)
for turn in range(100):
    heard, tells = os.pipe()
    child = os.fork()
    if not child:
        ends = time.monotonic() + 5.0  # should nobody be left to kill it
        for number in itertools.count(turn):
            write_file(path, contents[number % len(contents)])
            if number == turn:
                os.write(tells, b".")
            if time.monotonic() > ends:
                os._exit(0)
    if turn % 4:  # the others are killed in their first save, or before it
        os.read(heard, 1)
    time.sleep(dice.uniform(0.0, 0.004))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(heard)
    os.close(tells)
    found = path.read_bytes()
    assert found in contents, (turn, len(found))
    landed.add(found[0])
print(len(landed))
"""


def test_killed_100_times_while_saving_the_file_is_always_old_or_new(tmp_path: Path) -> None:
    """A real process, real kills at random moments of a loop that does nothing but save."""
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(tmp_path / FILE)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1, "the kills never hit a loop that was saving"


class Stopped(BaseException):
    """The machine stops: nothing that comes after it in the program runs."""


STEPS = ("open", "write", "fsync", "close", "replace")


def failing(monkeypatch: pytest.MonkeyPatch, step: int, after: bool, error: BaseException) -> list[str]:
    """Let the calls to the system go through until number `step`, then none; returns the list of their names."""
    calls: list[str] = []

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if len(calls) > step and isinstance(error, Stopped):
                raise error
            calls.append(name)
            if len(calls) - 1 == step and not after:
                raise error
            if name == "write":  # a disk may take less than it is given
                args = (args[0], bytes(args[1][:1000]))
            result = real(*args, **options)
            if len(calls) - 1 == step:
                raise error
            return result

        return call

    for name in STEPS:
        monkeypatch.setattr(state_store.os, name, wrapped(name, getattr(os, name)))
    return calls


@pytest.mark.parametrize("stops", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_stopped_before_or_after_any_step_the_file_is_old_or_new(tmp_path: Path, stops: bool, after: bool) -> None:
    """Every call to the system, one by one: power loss there, or an error from it."""
    old, new = b"o" * 2500, b"n" * 3500
    steps = 0
    while True:
        path = tmp_path / f"{steps}"
        write_file(path, old)
        error: BaseException = Stopped() if stops else OSError(errno.ENOSPC, "No space left on device")
        with pytest.MonkeyPatch.context() as patch:
            calls = failing(patch, steps, after, error)
            try:
                write_file(path, new)
                break
            except (Stopped, OSError):
                renamed = "replace" in (calls if after else calls[:-1])
        assert path.read_bytes() == (new if renamed else old), calls
        write_file(path, b"later")
        assert path.read_bytes() == b"later", "what a failed save leaves behind must not be in the way"
        steps += 1
    assert set(calls) == set(STEPS)
    assert steps == len(calls) >= 10


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
        patch.setattr(state_store.os, "write", full)
        one.save(states(2.0))
    assert "No space left on device" in caplog.text
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
