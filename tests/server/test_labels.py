"""What clients make up never becomes a label: the number of series does not grow with traffic."""

from __future__ import annotations

import json
import random
import string
from typing import Any
from unittest import mock

from aiohttp import StreamReader, web
from aiohttp.test_utils import make_mocked_request

from adaptspec.telemetry.metrics import Metrics
from adaptspec.telemetry.request_store import RequestStore
from adaptspec.types import Completion, FinishReason, Request, SpeculationParams, SpeculationStats, Timings
from tests.server.conftest import Client

WORDS = 500
DONE = Completion("r", "", (1,) * 5, 3, FinishReason.STOP, SpeculationStats("goodput"), Timings(0.0, 0.1, 0.5, 2.5))


async def series(client: Client) -> set[str]:
    async with client.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


async def test_random_models_paths_methods_and_wishes_make_no_series(client: Client, app: web.Application) -> None:
    """500 of each: a model, a path, a method, a task and a policy that nobody serves."""
    luck = random.Random(5)

    def word() -> str:
        return "".join(luck.choices(string.ascii_uppercase, k=12))

    parts = {
        name: mock.MagicMock() for name in ("writer", "protocol", "transport")
    }  # one for all: they are slow to make

    async def handled(method: str, path: str, body: dict[str, Any] | None = None) -> int:
        # Past sockets and parser, which lets no such method in at all.
        payload = StreamReader(parts["protocol"], 2**16)
        payload.feed_data(json.dumps(body).encode())
        payload.feed_eof()
        headers = {"Content-Type": "application/json"}
        request = make_mocked_request(method, path, headers, app=app, payload=payload, **parts)
        return int((await app._handle(request)).status)

    async def everything() -> None:
        wishes = {"policy": word(), "task": word()}
        body = {"model": word(), "prompt": "a", "max_tokens": 1, "adaptspec": wishes}
        assert await handled("POST", "/v1/completions", body) == 404
        assert await handled(word(), f"/v1/{word()}") in (404, 405)

    await series(client)
    for _ in range(20):
        await everything()
    before = await series(client)
    for _ in range(WORDS):
        await everything()
    assert await series(client) == before
    assert len(before) < 300


def test_what_the_engine_is_told_makes_no_series() -> None:
    """Ids, prompts and task hints differ from request to request; labels are of what is served."""
    store = RequestStore(pause=60.0)
    metrics = Metrics(store, compat_vllm=True, model_name="tiny")
    store.start(1)
    sizes = []
    for number in range(2 * WORDS):
        request = Request(
            f"r{number}", (number,), speculation=SpeculationParams(task=f"task-{number}"), operation="chat"
        )
        store.finished(request, DONE)
        if number in (0, 2 * WORDS - 1):
            sizes.append(sum(len(family.samples) for family in metrics.families()))
    assert sizes[0] == sizes[1]
