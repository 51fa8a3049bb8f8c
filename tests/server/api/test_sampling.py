"""What a body becomes for the engine."""

from __future__ import annotations

import asyncio
from typing import Any

PATH = "/v1/completions"


async def test_prompts_of_one_request_run_at_the_same_time(post: Any, engine: Any) -> None:
    engine.pause = 0.01
    running = []
    stats = engine.stats

    async def watch() -> None:
        while len(engine.seen) < 4 or engine.running:
            running.append(stats().running)
            await asyncio.sleep(0.002)

    await asyncio.gather(post(PATH, prompt=["a", "b", "c", "d"], max_tokens=3), watch())
    assert max(running) == 4


async def test_every_sampling_field_reaches_the_engine(post: Any, engine: Any) -> None:
    fields = {
        "temperature": 1,
        "top_k": 5,
        "top_p": 0.5,
        "min_p": 0.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.2,
        "repetition_penalty": 1.1,
        "seed": 7,
        "ignore_eos": True,
        "min_tokens": 2,
        "max_tokens": 4,
    }
    speculation = {"policy": "static", "task": "code", "max_depth": 0}
    status, _ = await post(
        PATH,
        prompt="x",
        **fields,
        logit_bias={"42": -100},
        stop="END",
        stop_token_ids=[9],
        user="me",
        adaptspec=speculation,
    )
    assert status == 200
    (request,) = engine.seen
    assert {name: getattr(request.sampling, name) for name in fields} == fields
    assert request.sampling.logit_bias == {42: -100.0}
    assert (request.sampling.stop, request.sampling.stop_token_ids) == (("END",), (9,))
    assert {name: getattr(request.speculation, name) for name in speculation} == speculation
