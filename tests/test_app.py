"""A whole server in this process: what it keeps, writes down and reloads."""

from __future__ import annotations

import gc
import io
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from rich.console import Console

from adaptspec.app import serve, watchdog_of
from adaptspec.control.learned_state import FILE, read_state
from adaptspec.engine.core import EngineLimits
from adaptspec.errors import JournalError
from adaptspec.journal import JournalHeader, RequestFinished, RequestStarted, read_entries
from tests.conftest import MakeModel
from tests.records import read_journal
from tests.running import MAIN, Running, config_of, get

KEY = {"Authorization": "Bearer open sesame"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


async def test_a_start_says_what_it_does(target_path: Path, draft_path: Path, tmp_path: Path) -> None:
    """In lines where there is no terminal; then what it takes."""
    server = Running(config_of(target_path, draft_path, tmp_path))
    url = await server.url()
    async with aiohttp.ClientSession() as session:
        assert "adaptspec_compute_threads 1.0" in (await get(session, f"{url}/metrics")).splitlines()
    await server.stop()
    phases = [f"reading weights of {target_path}", "warming up", "AdaptSpec listens on "]
    at = [server.said.index(phase) for phase in phases]
    assert at == sorted(at)
    assert "  threads    1\n" in server.said
    assert re.search(r"^  memory     \d+\.\d\d GB resident$", server.said, re.MULTILINE)
    assert re.search(r"^  ready      in \d+ s$", server.said, re.MULTILINE)


async def test_a_start_says_what_ends_a_text_and_how_chats_are_written(make_model: MakeModel, tmp_path: Path) -> None:
    """And how far a draft with a shorter context reaches: texts go on without it, which nothing else would show."""
    draft = make_model("llama", seed=1, num_hidden_layers=1, max_position_embeddings=64)
    config = config_of(make_model("llama", eos_token_id=0), draft, tmp_path)
    server = Running(config)
    await server.url()
    await server.stop()
    assert "  end tokens <|pad|> (0), <|end|> (1)\n" in server.said
    assert "  template   tools described in the prompt\n" in server.said
    assert re.search(r"^  draft      model, .*, up to its own context of 64 tokens$", server.said, re.MULTILINE)


async def test_loaded_objects_are_excluded_from_garbage_collection(
    target_path: Path, draft_path: Path, tmp_path: Path
) -> None:
    """A search of all its objects would stop every request."""
    gc.unfreeze()  # those of other servers of this process
    server = Running(config_of(target_path, draft_path, tmp_path))
    await server.url()
    assert gc.get_freeze_count() > len(gc.get_objects())
    await server.stop()


@pytest.mark.parametrize(("pass_seconds", "bound"), [(0.001, 4.0), (2.0, 20.0)])
def test_an_engine_hangs_no_earlier_than_after_ten_of_its_longest_passes(pass_seconds: float, bound: float) -> None:
    """On a slow machine, a pass of all rows and of a full share of prompts takes seconds."""
    asked = []

    def verify_seconds(rows: int, tokens: int) -> float:
        asked.append((rows, tokens))
        return pass_seconds

    limits = EngineLimits(max_rows=3, prefill_tokens=512)
    built = SimpleNamespace(core=SimpleNamespace(limits=limits), costs=SimpleNamespace(verify_seconds=verify_seconds))
    assert watchdog_of(SimpleNamespace(), built).bound == bound  # type: ignore[arg-type]
    assert asked == [(3, 515)]


async def test_a_task_keeps_its_number_across_restarts(target_path: Path, draft_path: Path, tmp_path: Path) -> None:
    """Learned arrays go by numbers. The policies of the second life name another task first."""
    config, seen = config_of(target_path, draft_path, tmp_path), []
    for tasks in ("{zebra: {}}", "{aardvark: {}, zebra: {}}"):
        (tmp_path / "main.yaml").write_text(f"{MAIN}  tasks: {tasks}\n")
        server = Running(config)
        url = await server.url()
        async with aiohttp.ClientSession() as session:
            snapshot = await get(session, f"{url}/live/snapshot")
        await server.stop()
        seen.append(snapshot["server"]["tasks"])
    assert seen[0][-1:] == ["zebra"]
    assert seen[1] == [*seen[0], "aardvark"]


LATEST_IN_PARTS = (
    "<|user|>{{ messages[-1].content[0].text }}<|end|>{% if add_generation_prompt %}<|assistant|>"
    "{% if not enable_thinking | default(true) %}<think></think>{% endif %}{% endif %}"
)


async def test_a_start_says_what_the_template_leaves_out_and_how_it_marks_reasoning(
    target_path: Path, draft_path: Path, tmp_path: Path
) -> None:
    file = tmp_path / "template.jinja"
    file.write_text(LATEST_IN_PARTS)
    config = config_of(target_path, draft_path, tmp_path)
    server = Running(replace(config, chat_template=str(file)))
    await server.url()
    await server.stop()
    form = "tools described in the prompt; system text goes before the user's; content as parts"
    assert f"  template   {form}; only the latest messages\n" in server.said
    assert "  reasoning  <think> ... </think> as reasoning_content\n" in server.said


async def test_it_keeps_what_it_learns_writes_its_journal_and_reloads(
    target_path: Path, draft_path: Path, tmp_path: Path
) -> None:
    """One life of a server, and the beginning of the next."""
    config = config_of(target_path, draft_path, tmp_path)
    server = Running(config)
    url = await server.url()
    async with aiohttp.ClientSession() as session:
        body = {"prompt": "Hello", "max_tokens": 40, "temperature": 0, "adaptspec": {"task": "code"}}
        for _ in range(2):
            async with session.post(f"{url}/v1/completions", json=body) as response:
                assert response.status == 200
        assert [card["id"] for card in (await get(session, f"{url}/v1/policies"))["data"]][:2] == ["main", "other"]
        changed = MAIN + "  guard: {max-batch-size: 64}\n"
        async with session.post(f"{url}/admin/policies", data=changed, headers=KEY) as response:
            assert await response.json() == {"name": "main", "replaced": True, "carried": True}
        os.kill(os.getpid(), signal.SIGHUP)  # the file still says what it said
        running: dict[str, Any] = {}
        while running.get("main") != MAIN:
            cards = (await get(session, f"{url}/admin/policies", headers=KEY))["data"]
            running = {card["id"]: card["yaml"] for card in cards}
        async with session.post(f"{url}/admin/policies", data="spec: 7", headers=KEY) as response:
            assert response.status == 400
        shown = (await get(session, f"{url}/metrics")).splitlines()
        assert 'adaptspec_policy_reloads_total{result="success"} 2.0' in shown
        assert 'adaptspec_policy_reloads_total{result="failure"} 1.0' in shown
        for name in ("journal_dropped_lines", "state_quarantined_files", "state_failed_saves"):
            assert f"adaptspec_{name}_total 0.0" in shown
    await server.stop()
    learned = read_state(tmp_path / "state" / FILE).policies["main"].arrays["acceptance"]
    assert learned.any()
    _journal_is_whole(tmp_path / "journal.jsonl")
    server = Running(config)
    await server.url()
    await server.stop()
    again = read_state(tmp_path / "state" / FILE).policies["main"].arrays["acceptance"]
    assert (again == learned).all()
    assert not list((tmp_path / "state").glob("*quarantined*"))


def _journal_is_whole(path: Path) -> None:
    entries = list(read_entries(path))
    header, started, finished = entries[0], entries[1], entries[-1]
    assert isinstance(header, JournalHeader)
    assert header.policies[:2] == ["main", "other"]
    assert header.costs["rows"]
    assert isinstance(started, RequestStarted)
    assert (started.task, started.policy) == ("code", "main")
    assert isinstance(finished, RequestFinished)
    assert finished.tokens == 40
    assert finished.queued is not None
    assert finished.to_first_token is not None
    assert 0.0 <= finished.queued < finished.to_first_token < finished.seconds
    ends = [record.ended for record in read_journal(path)]
    assert ends == sorted(ends)
    assert ends[-1] < finished.ended
    assert abs(header.clock + finished.ended - time.time()) < 600.0
    emitted = [int(record.emitted.sum()) for record in read_journal(path)]
    assert sum(emitted) == 2 * 39  # the first token of each comes from reading the prompt


async def test_files_that_cannot_be_used_are_told_before_models_are_loaded(
    target_path: Path, draft_path: Path, tmp_path: Path
) -> None:
    """Not after minutes."""
    (tmp_path / "journal.jsonl").mkdir()
    with pytest.raises(JournalError, match="choose another file"):
        await serve(config_of(target_path, draft_path, tmp_path), Console(file=io.StringIO()))
