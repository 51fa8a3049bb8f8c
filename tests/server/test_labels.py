"""What clients make up never becomes a label: the number of series does not grow with traffic."""

from __future__ import annotations

import random
import string

from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from adaptspec.telemetry.metrics import Metrics
from adaptspec.types import Completion, FinishReason, Request, SpeculationParams, SpeculationStats, Timings
from tests.server.conftest import Client

WORDS = 5000
DONE = Completion("r", "", (1,) * 5, 3, FinishReason.STOP, SpeculationStats("goodput"), Timings(0.0, 0.1, 0.5, 2.5))


async def series(client: Client) -> set[str]:
    async with client.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


async def test_random_models_paths_methods_and_wishes_make_no_series(client: Client, app: web.Application) -> None:
    """5,000 of each: a model, a path, a method, a task and a policy that nobody serves."""
    luck = random.Random(5)

    def word() -> str:
        return "".join(luck.choices(string.ascii_uppercase, k=12))

    async def everything() -> None:
        wishes = {"policy": word(), "task": word()}
        body = {"model": word(), "prompt": "a", "max_tokens": 1, "adaptspec": wishes}
        async with client.post("/v1/completions", json=body) as response:
            assert response.status == 404
        # Past the parser, which lets no such method in at all.
        for method, path in ((word(), f"/v1/{word()}"), ("POST", f"/v1/{word()}"), (word(), "/v1/models")):
            assert (await app._handle(make_mocked_request(method, path, app=app))).status in (404, 405)

    for _ in range(20):
        await everything()
    before = await series(client)
    for _ in range(WORDS):
        await everything()
    assert await series(client) == before
    assert len(before) < 300


def test_what_the_engine_is_told_makes_no_series() -> None:
    """Ids, prompts and task hints differ from request to request; labels are of what is served."""
    metrics = Metrics(compat_vllm=True, model_name="tiny")
    sizes = []
    for number in range(2 * WORDS):
        request = Request(
            f"r{number}", (number,), speculation=SpeculationParams(task=f"task-{number}"), operation="chat"
        )
        metrics.finished(request, DONE)
        if number in (0, 2 * WORDS - 1):
            sizes.append(sum(len(family.samples) for family in metrics.families()))
    assert sizes[0] == sizes[1]
