"""Several requests to the engine at once, as one. Whatever ends early takes all of them along. Knows no HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any

from adaptspec.server.protocols import AsyncEngine, DeltaStream
from adaptspec.types import Completion, Delta, Request


async def complete_all(engine: AsyncEngine, requests: Sequence[Request]) -> list[Completion]:
    """Run the requests concurrently; answers in the order of the requests. One that fails aborts the others."""
    tasks = [asyncio.ensure_future(engine.generate(request)) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _cancel(tasks)


async def stream_all(engine: AsyncEngine, requests: Sequence[Request]) -> AsyncGenerator[tuple[int, Delta], None]:
    """Run the requests concurrently; pieces as they come, each with its request's index.

    Closing this generator, or a request that fails, aborts them all.
    """
    streams: list[DeltaStream] = []
    pending: dict[asyncio.Task[Delta | None], int] = {}
    try:
        for index, request in enumerate(requests):
            streams.append(engine.stream(request))
            pending[_next(streams[index])] = index
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=pending.__getitem__):
                index = pending.pop(task)
                if (delta := task.result()) is not None:
                    pending[_next(streams[index])] = index
                    yield index, delta
    finally:
        await _cancel(pending)
        for stream in streams:
            await stream.aclose()


def _next(stream: DeltaStream) -> asyncio.Task[Delta | None]:
    return asyncio.ensure_future(anext(stream, None))


async def _cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
