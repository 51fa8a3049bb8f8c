"""What an engine has learned survives it: nothing untrusted is used, and a disk that fails costs what is not saved."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptspec.control.learned_state import FILE, LearnedState, PolicyState, StateStore, read_state, to_bytes
from adaptspec.engine.checkpointer import Checkpointer
from adaptspec.errors import StateError
from tests.engine.desk import Desk, asking, desk_of
from tests.engine.policies import goodput, static


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
def test_an_untrusted_state_is_quarantined(tmp_path: Path, caplog: Any, content: bytes, reason: str) -> None:
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


@contextmanager
def no_room(_: Path) -> Iterator[None]:
    """No file may grow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def in_the_way(folder: Path) -> Iterator[None]:
    """A directory has the name of the temporary file, which then cannot be opened."""
    blocked = folder / f"{FILE}.tmp"
    blocked.unlink(missing_ok=True)
    blocked.mkdir()
    try:
        yield
    finally:
        blocked.rmdir()


@pytest.mark.parametrize("failing", [no_room, in_the_way])
def test_a_failed_save_is_made_up_for_though_nothing_is_new(
    tmp_path: Path, failing: Callable[[Path], AbstractContextManager[None]]
) -> None:
    """An idle server saves the same again: only what is on the disk counts as written."""
    one = store(tmp_path)
    for value in (1.0, 2.0):
        with failing(tmp_path):
            assert not one.save(states(value))
            assert not one.save(states(value)), "it has not been written yet"
        assert one.save(states(value))
        assert read_state(tmp_path / FILE).policies["p"].arrays["n"].tolist() == [value, 2.0]
    assert one.failed_saves == 4
    one.close()


async def test_an_idle_server_saves_again_what_could_not_be_saved(tmp_path: Path) -> None:
    """Something was in the way, and has gone when the next save comes; no request was served meanwhile."""
    file = tmp_path / "state" / FILE
    async with desk_of(tmp_path, [goodput("main")]) as one:
        kept = await asyncio.to_thread(keeper, one, tmp_path / "state")
        await one.served(asking(1))
        file.mkdir()
        assert not await asyncio.to_thread(kept.save)
        file.rmdir()
        assert await asyncio.to_thread(kept.save)
        assert read_state(file).policies["main"].arrays["acceptance"].any()
        await asyncio.to_thread(kept.close)


def test_a_directory_that_cannot_be_used_is_said_at_the_start(tmp_path: Path) -> None:
    """Not after an hour of learning."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="choose another"):
        store(tmp_path / "file" / "state")


def keeper(one: Desk, folder: Path, seconds: float = 60.0) -> Checkpointer:
    made = Checkpointer(one.desk, StateStore(folder, "pair"), seconds)
    made.start()
    return made


async def test_a_restart_goes_on_with_what_was_learned(tmp_path: Path) -> None:
    """Saved at the end, loaded at the start; of policies that are not served meanwhile nothing is lost."""
    state, files = tmp_path / "state", tmp_path / "files"
    files.mkdir()
    async with desk_of(files, [goodput("main"), goodput("rare")]) as one:
        kept = await asyncio.to_thread(keeper, one, state)
        await asyncio.gather(*(one.served(asking(i, "rare" if i % 2 else "main")) for i in range(6)))
        await asyncio.to_thread(kept.close)
    first = read_state(state / FILE)
    assert first.policies["main"].arrays["acceptance"].any()
    async with desk_of(files, [goodput("main"), static("fixed", 2)]) as one:
        kept = await asyncio.to_thread(keeper, one, state)
        now = (await asyncio.to_thread(one.desk.learned))["main"].arrays["acceptance"]
        assert (now == first.policies["main"].arrays["acceptance"]).all()
        await one.served(asking(1))
        await asyncio.to_thread(kept.close)
    second = read_state(state / FILE)
    assert second.policies["main"].arrays["acceptance"].sum() > first.policies["main"].arrays["acceptance"].sum()
    rare = "rare"
    assert (second.policies[rare].arrays["acceptance"] == first.policies[rare].arrays["acceptance"]).all()


async def test_it_saves_while_requests_run(tmp_path: Path) -> None:
    """A machine that dies loses a minute of learning, not a day."""
    async with desk_of(tmp_path, [goodput("main")]) as one:
        kept = await asyncio.to_thread(keeper, one, tmp_path / "state", 0.005)
        for number in range(200):
            await one.served(asking(number))
            if (tmp_path / "state" / FILE).exists() and number > 3:
                break
        assert read_state(tmp_path / "state" / FILE).policies["main"].arrays["acceptance"].any()
        await asyncio.to_thread(kept.close)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda array: array - 1.0, "negative"),  # well-formed, and impossible
        (lambda array: array[..., :-1], "shape"),  # such as of an earlier version with the same signature
    ],
)
async def test_a_state_that_a_policy_cannot_have_costs_no_other_policy_its_own(
    tmp_path: Path, caplog: Any, damage: Callable[[np.ndarray], np.ndarray], reason: str
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    async with desk_of(tmp_path, [goodput("main"), goodput("other")]) as one:
        known = await asyncio.to_thread(one.desk.learned)
        wrong = {key: damage(array) for key, array in known["main"].arrays.items()}
        right = {key: array + 1.0 for key, array in known["other"].arrays.items()}
        saved = {"main": replace(known["main"], arrays=wrong), "other": replace(known["other"], arrays=right)}
        (folder / FILE).write_bytes(to_bytes(LearnedState("pair", saved)))
        kept = await asyncio.to_thread(keeper, one, folder)
        assert "what policy main had learned is not used" in caplog.text
        assert reason in caplog.text
        assert not (folder / f"{FILE}.quarantined-1").exists()
        now = await asyncio.to_thread(one.desk.learned)
        assert not now["main"].arrays["acceptance"].any()
        assert np.array_equal(now["other"].arrays["acceptance"], right["acceptance"])
        await one.served(asking(1))
        await asyncio.to_thread(kept.close)
        assert (read_state(folder / FILE).policies["main"].arrays["acceptance"] >= 0.0).all()


async def test_a_state_with_other_task_numbers_is_quarantined(tmp_path: Path, caplog: Any) -> None:
    """Counts of one task would be those of another."""
    folder = tmp_path / "state"
    folder.mkdir()
    async with desk_of(tmp_path, [goodput("main", "  tasks: {acme: {max-depth: 2}}\n")]) as one:
        known = await asyncio.to_thread(one.desk.learned)
        (folder / FILE).write_bytes(to_bytes(LearnedState("pair", known, ("umbrella", "acme"))))
        kept = await asyncio.to_thread(keeper, one, folder)
        assert "other numbers here" in caplog.text
        assert (folder / f"{FILE}.quarantined-1").exists()
        await asyncio.to_thread(kept.close)


async def test_closing_after_the_engine_has_died_returns(tmp_path: Path, caplog: Any) -> None:
    """What was saved before stays."""
    async with desk_of(tmp_path, [goodput("main")]) as one:
        kept = await asyncio.to_thread(keeper, one, tmp_path / "state")
        await one.served(asking(1))
        await asyncio.to_thread(kept.save)
        before = (tmp_path / "state" / FILE).read_bytes()
        await asyncio.to_thread(one.front.close)
        await asyncio.to_thread(kept.close)
    assert (tmp_path / "state" / FILE).read_bytes() == before
    assert "is not saved" in caplog.text
