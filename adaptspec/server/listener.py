"""Serves an app until a signal ends it, gently: requests in flight may finish within a deadline."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web

from adaptspec.errors import ConfigError
from adaptspec.server.connection import Connection, ConnectionLimits
from adaptspec.server.errors import ClientSafeLogger, on_loop_error
from adaptspec.server.generation import GENERATION, Generation

# How long a thread may keep the interpreter while others want it. The engine wants it hundreds of times in a round, and
# would wait as long each time while a large body is parsed or a long conversation is rendered.
SWITCH_SECONDS = 0.0005
WRITE_SECONDS = 5.0  # for handlers to send what the engine has finished, after draining
# Files of our own, and connections that asyncio accepts, a hundred at a time, before they can be refused.
RESERVED_FILES = 512
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_logger = logging.getLogger(__name__)


async def serve_app(
    app: web.Application,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    connection_limits: ConnectionLimits = ConnectionLimits(),
    drain_seconds: float = 30.0,
    on_listening: Callable[[str], None],
    on_second_signal: Callable[[], object] = lambda: None,
) -> None:
    """Listen until SIGTERM or SIGINT, then drain: refuse new requests, let those in flight finish, return.

    After `drain_seconds` the rest is aborted; a second signal does so at once, and calls `on_second_signal` first. Port
    0 takes any free port; `on_listening` gets the URL once connections are accepted. The engine is left drained, for
    its owner to close. systemd is notified of the start, the end and, where it asks, that the engine is alive.
    Raises ConfigError if the address cannot be used. Needs the main thread, as signal handlers do.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    asyncio.get_running_loop().set_exception_handler(on_loop_error)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=WRITE_SECONDS)
    await runner.setup()
    try:
        listener = Listener(runner, host, port, connection_limits)
        try:
            await listener.start()
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot listen on {host}:{port} ({error}); choose another --host or --port") from error
        async with _signals() as received, _watchdog_reports(app):
            on_listening(listener.name)
            notify("READY=1")
            await received.get()
            notify("STOPPING=1")
            app[GENERATION].stopping = True
            listener.refuse_unread_bodies()
            await listener.stop()
            await _drain(app, drain_seconds, received, on_second_signal)
    finally:
        await runner.cleanup()
        sys.setswitchinterval(usual)


class Listener(web.BaseSite):
    """A site of a runner whose connections are `Connection`s."""

    __slots__ = ("_host", "_limits", "_port", "_system")

    def __init__(
        self,
        runner: web.AppRunner,
        host: str,
        port: int,
        limits: ConnectionLimits = ConnectionLimits(),
        *,
        system: Any = resource,
    ) -> None:
        """`system`: see `max_connections`."""
        super().__init__(runner)
        self._host = host
        self._port = port
        self._limits = limits
        self._system = system

    @property
    def name(self) -> str:
        """The address as a URL; for port 0 with the port that was taken, once it listens."""
        return f"http://[{self._host}]:{self._port}" if ":" in self._host else f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        """Listen. Raises OSError or OverflowError if the address cannot be used."""
        await super().start()
        loop, server, wanted = asyncio.get_running_loop(), self._runner.server, self._limits.connections
        assert server is not None
        most = max_connections(wanted, self._system)
        if most < wanted:
            message = "At most %d connections are taken instead of %d: the process may open no more files (ulimit -n)"
            _logger.warning(message, most, wanted)
        slots = threading.Semaphore(most)
        logger = ClientSafeLogger(_logger)
        self._server = await loop.create_server(
            lambda: Connection(server, self._limits, slots, loop=loop, logger=logger),
            self._host,
            self._port,
            # asyncio accepts a whole backlog before it counts the first of them; the reserve has room for several.
            backlog=min(100, max(8, most // 4)),
        )
        self._port = self._server.sockets[0].getsockname()[1]

    def refuse_unread_bodies(self) -> None:
        """Have all requests whose bodies still arrive fail with DrainingError: the rest is no longer read."""
        assert self._runner.server is not None
        for connection in self._runner.server.connections:
            assert isinstance(connection, Connection)
            connection.refuse_unread_body()


def max_connections(wanted: int, system: Any = resource) -> int:
    """As many of the wanted connections as may be open at once. Raises the soft limit on files up to the hard one.

    `system` gets and sets limits, as the module `resource` does.
    """
    limits: tuple[int, int] = system.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = limits
    if soft == resource.RLIM_INFINITY:
        return wanted
    files = wanted + RESERVED_FILES
    most = files if hard == resource.RLIM_INFINITY else min(files, hard)
    if soft < most:
        # A system may allow less than it says.
        with suppress(ValueError, OSError):
            system.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return max(1, min(wanted, soft - min(RESERVED_FILES, soft // 2)))


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


async def _drain(
    app: web.Application,
    seconds: float,
    received: asyncio.Queue[signal.Signals],
    on_second_signal: Callable[[], object],
) -> None:
    draining = asyncio.ensure_future(_drain_gently(app[GENERATION], seconds))
    second = asyncio.ensure_future(received.get())
    await asyncio.wait([draining, second], return_when=asyncio.FIRST_COMPLETED)
    if second.done():
        on_second_signal()
        draining.cancel()
        await app[GENERATION].engine.drain(0.0)
    second.cancel()
    await asyncio.gather(draining, second, return_exceptions=True)


async def _drain_gently(generation: Generation, seconds: float) -> None:
    """Drain the engine, which first gets the requests that were admitted before."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while generation.preparing and loop.time() < deadline:
        await asyncio.sleep(0.02)
    await generation.engine.drain(max(0.0, deadline - loop.time()))


@asynccontextmanager
async def _watchdog_reports(app: web.Application) -> AsyncGenerator[None, None]:
    """Report to systemd's watchdog meanwhile."""
    task = asyncio.create_task(send_watchdog_reports(lambda: app[GENERATION].engine.is_alive))
    try:
        yield
    finally:
        task.cancel()


async def send_watchdog_reports(
    alive: Callable[[], bool], sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> None:
    """Report to systemd in half the time that it allows, while `alive()`. Returns at once if it wants no reports."""
    seconds = _watchdog_seconds()
    while seconds is not None:
        if alive():
            notify("WATCHDOG=1")
        await sleep(seconds / 2)


def _watchdog_seconds(environ: Mapping[str, str] = os.environ) -> float | None:
    """The longest time without a report before systemd kills this process; None if it wants none."""
    try:
        microseconds, process = int(environ["WATCHDOG_USEC"]), int(environ.get("WATCHDOG_PID", os.getpid()))
    except (KeyError, ValueError):
        return None
    return microseconds / 1e6 if microseconds > 0 and process == os.getpid() else None


def notify(state: str, environ: Mapping[str, str] = os.environ) -> None:
    """Send a state to systemd, for a unit with `Type=notify`. Never waits and never raises.

    The state is a datagram to the socket that $NOTIFY_SOCKET names; without that variable none is sent. The protocol:
    https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # an abstract socket, which has no file
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), address)
    except OSError as error:
        _logger.warning("systemd cannot be notified of %s (%s)", state, error.strerror)
