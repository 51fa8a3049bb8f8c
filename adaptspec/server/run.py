"""Serves an app until a signal ends it, gently: what is in flight may finish, within a deadline."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from adaptspec.errors import ConfigError
from adaptspec.server import systemd
from adaptspec.server.connection import Listener
from adaptspec.server.log_filters import ClientFaults, Repeats, limited, on_loop_error
from adaptspec.server.service import SERVICE

# How long a thread may keep the interpreter while others want it. The engine wants it hundreds of times in a round, and
# would wait as long each time while a large body is read or a long talk is written out.
SWITCH_SECONDS = 0.0005
WRITE_SECONDS = 5.0  # for handlers to send what the engine has finished, after draining
# Who writes down what clients do: asyncio's errors of sockets, aiohttp's of requests, and ours of what they ask for.
_TALKATIVE = ("asyncio", __name__, "adaptspec.server.http_errors", "adaptspec.server.sse")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def serve(
    app: web.Application,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    drain_seconds: float = 30.0,
    on_listening: Callable[[str], None],
    on_hurry: Callable[[], object] = lambda: None,
) -> None:
    """Listen until SIGTERM or SIGINT, then drain: refuse new requests, let those in flight finish, return.

    After `drain_seconds` the rest is aborted; a second signal does so at once, and calls `on_hurry` first. Port 0 takes
    any free one; `on_listening` gets the URL once connections are accepted. The engine is left drained, for its owner
    to close. systemd is notified of the start, the end and, where it asks, that the engine is alive.
    Raises ConfigError if the address cannot be used. Needs the main thread, as signal handlers do.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    logger = ClientFaults(logging.getLogger(__name__))
    asyncio.get_running_loop().set_exception_handler(on_loop_error)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=WRITE_SECONDS)
    await runner.setup()
    try:
        site = Listener(runner, host, port, app[SERVICE].limits, logger=logger)
        try:
            await site.start()
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot listen on {host}:{port} ({error}); choose another --host or --port") from error
        async with _signals() as received, limited(Repeats(), _TALKATIVE), _watched(app):
            on_listening(site.name)
            systemd.notify(systemd.READY)
            await received.get()
            systemd.notify(systemd.STOPPING)
            app[SERVICE].draining = True
            await site.stop()
            await _drain(app, drain_seconds, received, on_hurry)
    finally:
        await runner.cleanup()
        sys.setswitchinterval(usual)


@asynccontextmanager
async def _signals() -> AsyncGenerator[asyncio.Queue[signal.Signals], None]:
    received: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, received.put_nowait, number)
    try:
        yield received
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def _watched(app: web.Application) -> AsyncGenerator[None, None]:
    """Meanwhile systemd is notified that the engine is alive, if it asks for it."""
    task = asyncio.create_task(systemd.send_watchdog_reports(lambda: app[SERVICE].engine.is_alive))
    try:
        yield
    finally:
        task.cancel()


async def _drain(
    app: web.Application,
    seconds: float,
    received: asyncio.Queue[signal.Signals],
    on_hurry: Callable[[], object],
) -> None:
    draining = asyncio.ensure_future(app[SERVICE].engine.drain(seconds))
    hurry = asyncio.ensure_future(received.get())
    await asyncio.wait([draining, hurry], return_when=asyncio.FIRST_COMPLETED)
    if hurry.done():
        on_hurry()
        draining.cancel()
        await app[SERVICE].engine.drain(0.0)
    hurry.cancel()
    await asyncio.gather(draining, hurry, return_exceptions=True)
