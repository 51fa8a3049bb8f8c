"""A client that goes away, and a prompt that fails, take their requests along."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from adaptspec.errors import OverloadedError
from adaptspec.server.generation import complete_all, stream_all
from adaptspec.types import Request, SamplingParams


async def until(condition: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), 5.0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", [1, 3])
async def test_a_client_that_disconnects_aborts_its_requests(
    client: Any, engine: Any, stream: bool, prompts: int
) -> None:
    engine.pause = 0.02
    body = json.dumps({"prompt": ["hi"] * prompts, "max_tokens": 200, "stream": stream}).encode()
    reader, writer = await asyncio.open_connection(client.server.host, client.server.port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(head.encode() + b"\r\n\r\n" + body)
    await until(lambda: engine.running == prompts)
    if stream:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    assert engine.aborted == []
    writer.close()
    await writer.wait_closed()
    await until(lambda: len(engine.aborted) == prompts)
    assert engine.running == 0


def requests(count: int) -> list[Request]:
    return [Request(str(index), (5,), SamplingParams(max_tokens=50)) for index in range(count)]


class Picky:
    """An engine that refuses every request but the first."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def stream(self, request: Request) -> Any:
        if request.id != "0":
            raise OverloadedError("full; wait")
        return self.engine.stream(request)

    async def generate(self, request: Request) -> Any:
        if request.id != "0":
            await asyncio.sleep(0.01)
            raise OverloadedError("full; wait")
        return await self.engine.generate(request)


async def test_one_refused_prompt_aborts_the_others(engine: Any) -> None:
    engine.pause = 0.01
    with pytest.raises(OverloadedError):
        await complete_all(Picky(engine), requests(3))  # type: ignore[arg-type]
    with pytest.raises(OverloadedError):
        async for _ in stream_all(Picky(engine), requests(3)):  # type: ignore[arg-type]
            pass
    assert engine.running == 0
    assert engine.aborted == ["0"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_prompt_is_soon_forgotten(engine: Any, stream: bool) -> None:
    """Without the cycle collector, which may not look for minutes: prompts of megabytes would pile up until then."""
    engine.refusal, prompts = OverloadedError("full; wait"), requests(3)
    kept = [weakref.ref(request) for request in prompts]
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(OverloadedError):
            await _run(engine, prompts, stream)
        engine.refusal = None
        engine.seen.clear()
        prompts.clear()
        await asyncio.sleep(0.01)  # the loop still holds callbacks of what has just ended
        assert [ref() for ref in kept] == [None] * 3
    finally:
        gc.enable()


async def _run(engine: Any, prompts: list[Request], stream: bool) -> None:
    if stream:
        async with aclosing(stream_all(engine, prompts)) as deltas:
            async for _ in deltas:
                pass
    else:
        await complete_all(engine, prompts)


async def test_closing_early_aborts_what_still_runs(engine: Any) -> None:
    engine.pause = 0.001
    stream = stream_all(engine, requests(3))
    assert (await anext(stream))[1].text
    await stream.aclose()
    assert sorted(engine.aborted) == ["0", "1", "2"]
