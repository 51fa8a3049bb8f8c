"""What an engine has learned survives it, and never gets in its way."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from adaptspec.control.state import LearnedState, PolicyState, read_state, to_bytes
from adaptspec.engine import state_store
from adaptspec.engine.state_keeper import StateKeeper
from adaptspec.engine.state_store import FILE, StateStore
from tests.engine.policies import Desk, asking, desk_of, goodput, static


def keeper(one: Desk, folder: Path, seconds: float = 60.0) -> StateKeeper:
    made = StateKeeper(one.desk, StateStore(folder, "pair"), seconds)
    made.start()
    return made


async def test_a_restart_goes_on_with_what_was_learned(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """Saved at the end, loaded at the start; of policies that are not served meanwhile nothing is lost."""
    state, files = tmp_path / "state", tmp_path / "files"
    files.mkdir()
    async with desk_of(tokenizer, files, [goodput("main"), goodput("rare")]) as one:
        kept = await asyncio.to_thread(keeper, one, state)
        await asyncio.gather(*(one.served(asking(i, "rare" if i % 2 else "main")) for i in range(6)))
        await asyncio.to_thread(kept.close)
    first = read_state(state / FILE)
    assert first.policies["main"].arrays["acceptance"].any()
    async with desk_of(tokenizer, files, [goodput("main"), static("fixed", 2)]) as one:
        kept = await asyncio.to_thread(keeper, one, state)
        now = (await asyncio.to_thread(one.desk.learned))["main"].arrays["acceptance"]
        assert (now == first.policies["main"].arrays["acceptance"]).all()
        await one.served(asking(1))
        await asyncio.to_thread(kept.close)
    second = read_state(state / FILE)
    assert second.policies["main"].arrays["acceptance"].sum() > first.policies["main"].arrays["acceptance"].sum()
    rare = "rare"
    assert (second.policies[rare].arrays["acceptance"] == first.policies[rare].arrays["acceptance"]).all()


async def test_it_saves_while_requests_run(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """A machine that dies loses a minute of learning, not a day."""
    async with desk_of(tokenizer, tmp_path, [goodput("main")]) as one:
        kept = await asyncio.to_thread(keeper, one, tmp_path / "state", 0.005)
        for number in range(200):
            await one.served(asking(number))
            if (tmp_path / "state" / FILE).exists() and number > 3:
                break
        assert read_state(tmp_path / "state" / FILE).policies["main"].arrays["acceptance"].any()
        await asyncio.to_thread(kept.close)


async def test_a_full_disk_fails_no_request(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Only the log knows."""

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(state_store.os, "write", full)
    async with desk_of(tokenizer, tmp_path, [goodput("main")]) as one:
        kept = await asyncio.to_thread(keeper, one, tmp_path / "state", 0.005)
        assert await asyncio.gather(*(one.served(asking(i)) for i in range(8))) == ["main"] * 8
        await asyncio.to_thread(kept.close)
    assert "No space left" in caplog.text


async def test_a_state_that_no_policy_can_have_is_put_aside(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, caplog: Any
) -> None:
    """Well-formed, of the right models, and impossible: negative counts."""
    folder = tmp_path / "state"
    folder.mkdir()
    async with desk_of(tokenizer, tmp_path, [goodput("main")]) as one:
        known = (await asyncio.to_thread(one.desk.learned))["main"]
        wrong = PolicyState(known.signature, {key: array - 1.0 for key, array in known.arrays.items()})
        (folder / FILE).write_bytes(to_bytes(LearnedState("pair", {"main": wrong})))
        kept = await asyncio.to_thread(keeper, one, folder)
        assert "negative" in caplog.text
        assert (folder / f"{FILE}.quarantined-1").exists()
        await one.served(asking(1))
        await asyncio.to_thread(kept.close)
        assert (read_state(folder / FILE).policies["main"].arrays["acceptance"] >= 0.0).all()


async def test_closing_after_the_engine_has_died_hangs_nobody(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, caplog: Any
) -> None:
    """What was saved before stays."""
    async with desk_of(tokenizer, tmp_path, [goodput("main")]) as one:
        kept = await asyncio.to_thread(keeper, one, tmp_path / "state")
        await one.served(asking(1))
        await asyncio.to_thread(kept.save)
        before = (tmp_path / "state" / FILE).read_bytes()
        await asyncio.to_thread(one.front.close)
        await asyncio.to_thread(kept.close)
    assert (tmp_path / "state" / FILE).read_bytes() == before
    assert "is not saved" in caplog.text
