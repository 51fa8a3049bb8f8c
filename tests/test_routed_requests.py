"""The policy that `when:` chose for a request is in its answer, the journal, `policy explain` and the traces."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from adaptspec.cli import main
from adaptspec.config import ServeConfig
from adaptspec.journal import RequestFinished, read_entries
from tests.records import read_journal
from tests.running import HEAD, Running, get
from tests.telemetry.otlp import collecting

OUTER = HEAD % "outer" + (
    "  choose: {algorithm: static, depth: 2}\n  when:\n    - {prompt-tokens: {at-least: 20}, use: promise.yaml}\n"
)
PROMISE = HEAD % "promise" + "  choose: {algorithm: static, depth: 1}\n"
SHORT, LONG = [5, 6, 7], [5, 6, 7] * 10
TOKENS = 12


async def ask(session: aiohttp.ClientSession, url: str, prompt: list[int], **wishes: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0, "adaptspec": wishes}
    async with session.post(f"{url}/v1/completions", json=body) as response:
        answer: dict[str, Any] = await response.json()
        assert response.status == 200, answer
    return answer


async def test_the_policy_that_when_chose_is_reported_everywhere(
    target_path: Path, draft_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "outer.yaml").write_text(OUTER)
    (tmp_path / "promise.yaml").write_text(PROMISE)
    journal = tmp_path / "journal.jsonl"
    with collecting() as collector:
        config = ServeConfig(
            model=str(target_path),
            draft=str(draft_path),
            policy=(str(tmp_path / "outer.yaml"),),
            max_num_seqs=4,
            port=0,
            served_model_name=("tiny",),
            journal=journal,
            otlp_traces_endpoint=collector.url,
            trace_level="round",
            admin_key="key",
        )
        server = Running(config)
        try:
            url = await server.url()
            async with aiohttp.ClientSession() as session:
                answers = await asyncio.gather(
                    ask(session, url, SHORT), ask(session, url, LONG), ask(session, url, LONG, policy="off")
                )
                live = await get(session, f"{url}/live/snapshot", headers={"Authorization": "Bearer key"})
        finally:
            await server.stop()
    said = [answer["metrics"]["speculative_decoding"]["adaptspec"] for answer in answers]
    assert [one["policy"] for one in said] == ["outer", "promise", "off"]
    ended = {request["id"]: request["policy"] for request in live["recent"]}
    assert [ended[answer["id"]] for answer in answers] == ["outer", "promise", "off"]

    finished = {entry.id: entry for entry in read_entries(journal) if isinstance(entry, RequestFinished)}
    entries = [finished[answer["id"]] for answer in answers]
    assert [entry.policy for entry in entries] == ["outer", "promise", "off"]
    depths: dict[str, set[int]] = {}
    for record in read_journal(journal):
        for name, depth in zip(record.request_ids, record.depths.tolist(), strict=True):
            depths.setdefault(name, set()).add(depth)
    assert [max(depths[answer["id"]]) for answer in answers] == [2, 1, 0]

    spans = {span.attributes["gen_ai.response.id"]: span.attributes for span in collector.named("text_completion tiny")}
    assert [spans[answer["id"]]["adaptspec.policy"] for answer in answers] == ["outer", "promise", "off"]

    capsys.readouterr()
    explained = ["policy", "explain", "--journal", str(journal)]
    assert main([*explained, "--request", answers[1]["id"], "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["policy"] == "promise"
    assert main([*explained, "promise", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 1
