"""One server watched in every way at once: traces, metrics, answers and journal tell the same counts."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from adaptspec.config import ServeConfig
from adaptspec.journal import LinesDropped, RequestFinished, read_entries
from tests.records import read_journal
from tests.telemetry.otlp import Collector, collecting
from tests.test_app import MAIN, Running, get

REQUESTS = 1000
Answers = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "20000")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")


def config_of(target: Path, draft: Path, folder: Path, url: str) -> ServeConfig:
    (folder / "main.yaml").write_text(MAIN)
    return ServeConfig(
        model=str(target),
        draft=str(draft),
        policy=(str(folder / "main.yaml"), "static-3"),
        max_num_seqs=16,
        detect_tasks=False,
        port=0,
        served_model_name=("tiny",),
        journal=folder / "journal.jsonl",
        otlp_traces_endpoint=url,
    )


def random_body(luck: random.Random) -> dict[str, Any]:
    """Some prompt, some length, some wishes; one in ten asks for two prompts."""
    texts = ["".join(luck.choices("abcdefgh ", k=luck.randint(1, 20))) for _ in range(1 + (luck.random() < 0.1))]
    wishes: dict[str, Any] = {"task": luck.choice(["code", "story"]), "policy": luck.choice(["main", "static-3"])}
    if luck.random() < 0.1:
        wishes["max_depth"] = 0
    return {
        "prompt": texts if len(texts) > 1 else texts[0],
        "max_tokens": luck.randint(1, 12),
        "temperature": luck.choice([0, 0.8]),
        "seed": luck.randint(0, 99),
        "adaptspec": wishes,
    }


async def ask_all(url: str) -> Answers:
    luck, answers = random.Random(7), []
    bodies = iter([random_body(luck) for _ in range(REQUESTS)])

    async def client(session: aiohttp.ClientSession) -> None:
        for body in bodies:
            async with session.post(f"{url}/v1/completions", json=body) as response:
                assert response.status == 200
                answers.append(await response.json())

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(client(session) for _ in range(16)))
    return answers


async def test_traces_metrics_answers_and_journal_agree(target_path: Path, draft_path: Path, tmp_path: Path) -> None:
    """Exactly, over a thousand random requests."""
    with collecting() as collector:
        server = Running(config_of(target_path, draft_path, tmp_path, collector.url))
        url = await server.url()
        answers = await ask_all(url)
        async with aiohttp.ClientSession() as session:
            shown = await get(session, f"{url}/metrics")
        await server.stop()
    said = [answer["metrics"]["speculative_decoding"] for answer in answers]
    counts = {
        "drafted": sum(one["num_draft_tokens"] for one in said),
        "accepted": sum(one["num_accepted_draft_tokens"] for one in said),
        "rounds": sum(one["adaptspec"]["rounds"] for one in said),
        "output": sum(answer["usage"]["completion_tokens"] for answer in answers),
        "prompt": sum(answer["usage"]["prompt_tokens"] for answer in answers),
    }
    assert counts["accepted"] > 100
    assert of_traces(collector, answers) == counts
    assert of_metrics(shown) == counts
    assert of_journal(tmp_path / "journal.jsonl", counts["prompt"]) == counts


def of_traces(collector: Collector, answers: Answers) -> dict[str, int]:
    """From the roots and, apart, from the arrays of the rounds; both must be alike, answer by answer."""
    roots = {span.attributes["gen_ai.response.id"]: span for span in collector.named("text_completion tiny")}
    assert len(roots) == REQUESTS
    for answer in answers:
        root, one = roots[answer["id"]].attributes, answer["metrics"]["speculative_decoding"]
        assert root["gen_ai.usage.output_tokens"] == answer["usage"]["completion_tokens"]
        assert root["adaptspec.spec.drafted_tokens"] == one["num_draft_tokens"]
        assert root["adaptspec.spec.accepted_tokens"] == one["num_accepted_draft_tokens"]
        if len(answer["choices"]) == 1:
            assert root.get("adaptspec.speedup") == one["adaptspec"]["speedup"]
    decodes = [span.attributes for span in collector.named("decode")]
    prompts = [span.attributes["adaptspec.prompt_tokens"] for span in collector.named("prefill")]
    return {
        "drafted": sum(sum(json.loads(one["adaptspec.spec.drafted"])) for one in decodes),
        "accepted": sum(sum(json.loads(one["adaptspec.spec.accepted"])) for one in decodes),
        "rounds": sum(len(json.loads(one["adaptspec.spec.depth"])) for one in decodes),
        "output": sum(one["adaptspec.output_tokens"] for one in decodes),
        "prompt": sum(prompts),
    }


def of_metrics(shown: str) -> dict[str, int]:
    seen: Counter[str] = Counter()
    for family in text_string_to_metric_families(shown):
        for sample in family.samples:
            seen[sample.name] += int(sample.value)
    prefix = "adaptspec_spec_decode"
    assert seen["adaptspec_trace_dropped_spans_total"] == seen["adaptspec_telemetry_dropped_events_total"] == 0
    return {
        "drafted": seen[f"{prefix}_draft_tokens_total"],
        "accepted": seen[f"{prefix}_accepted_tokens_total"],
        "rounds": seen[f"{prefix}_depth_total"],
        "output": seen["adaptspec_generation_tokens_total"],
        "prompt": seen["adaptspec_prompt_tokens_total"],
    }


def of_journal(path: Path, prompt: int) -> dict[str, int]:
    ended = [entry for entry in read_entries(path) if isinstance(entry, RequestFinished)]
    rounds = list(read_journal(path))
    assert sum(one.drafted for one in ended) == sum(int(record.drafted.sum()) for record in rounds)
    return {
        "drafted": sum(one.drafted for one in ended),
        "accepted": sum(one.accepted for one in ended),
        "rounds": sum(len(record.rows) for record in rounds),
        "output": sum(one.tokens for one in ended),
        "prompt": prompt,
    }


async def test_a_server_whose_collector_hangs_serves_and_ends_in_time(
    target_path: Path, draft_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers come, drops are counted, and the end does not wait for a collector that never answers."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "16")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16")
    loop = asyncio.get_running_loop()
    with collecting(stall=True) as collector:
        server = Running(config_of(target_path, draft_path, tmp_path, collector.url))
        url = await server.url()
        async with aiohttp.ClientSession() as session:
            dropped = 0.0
            for _ in range(200):
                async with session.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 3}) as response:
                    assert response.status == 200
                shown = await get(session, f"{url}/metrics")
                dropped = float(shown.split("\nadaptspec_trace_dropped_spans_total ")[1].split("\n")[0])
                if dropped:
                    break
        assert dropped > 0
        begun = loop.time()
        await server.stop()
        assert loop.time() - begun < 10


@contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """A part of a line still fits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((folder / "journal.jsonl").stat().st_size + 100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def missing_folder(folder: Path) -> Iterator[None]:
    away = folder.with_name("away")
    folder.rename(away)
    shutil.rmtree(away)
    try:
        yield
    finally:
        folder.mkdir()


@pytest.mark.parametrize("fault", [full_disk, missing_folder])
async def test_a_disk_that_fails_costs_lines_of_the_journal_alone(
    fault: Callable[[Path], AbstractContextManager[None]], target_path: Path, draft_path: Path, tmp_path: Path
) -> None:
    """No answer is lost, lost lines are in /metrics, and the journal continues when the disk is well again."""
    folder = tmp_path / "logs"
    config = replace(
        config_of(target_path, draft_path, tmp_path, "http://127.0.0.1:9"), journal=folder / "journal.jsonl"
    )
    server = Running(config)
    url = await server.url()
    async with aiohttp.ClientSession() as session:

        async def ask() -> None:
            async with session.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 3}) as response:
                assert response.status == 200

        async def dropped() -> float:
            shown = await get(session, f"{url}/metrics")
            return float(shown.split("\nadaptspec_journal_dropped_lines_total ")[1].split("\n")[0])

        await ask()
        assert await dropped() == 0
        with fault(folder):
            while not (lost := await dropped()):
                await ask()
        await ask()
    await server.stop()
    entries = list(read_entries(folder / "journal.jsonl"))
    assert sum(entry.lines for entry in entries if isinstance(entry, LinesDropped)) >= lost
    assert isinstance(entries[-1], RequestFinished)
