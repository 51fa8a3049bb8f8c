"""Several requests to the engine at once, as one. Whatever ends early takes all of them along. Knows no HTTP."""

from __future__ import annotations

import asyncio
from collections import deque
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
        # A failed task holds its error, whose traceback holds this frame: a cycle that keeps prompts from being freed.
        tasks.clear()


async def stream_all(engine: AsyncEngine, requests: Sequence[Request]) -> AsyncGenerator[tuple[int, Delta], None]:
    """Run the requests concurrently; pieces as they come, each with its request's index.

    Closing this generator, or a request that fails, aborts them all.
    """
    streams: list[DeltaStream] = []
    pending: dict[asyncio.Task[Delta | None], int] = {}
    ready: deque[asyncio.Task[Delta | None]] = deque()
    try:
        for index, request in enumerate(requests):
            streams.append(engine.stream(request))
            pending[_next(streams[index])] = index
        while pending:
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            # No variable may name a failed task: see complete_all.
            ready = deque(sorted((task for task in pending if task.done()), key=pending.__getitem__))
            while ready:
                index = pending.pop(ready[0])
                if (delta := ready.popleft().result()) is not None:
                    pending[_next(streams[index])] = index
                    yield index, delta
    finally:
        await _cancel(pending)
        pending.clear()
        ready.clear()
        for stream in streams:
            await stream.aclose()


def _next(stream: DeltaStream) -> asyncio.Task[Delta | None]:
    return asyncio.ensure_future(anext(stream, None))


async def _cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
