"""One client's connection, within bounds: how many there are, how long headers may take, how long nobody reads."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import threading
from contextlib import suppress
from typing import Any

from aiohttp import web

from adaptspec.server.http_errors import HttpError
from adaptspec.server.limits import ServerLimits

_FULL = HttpError(503, "too many connections are open; try again", "server_error", "too_many_connections")

# Files of our own, and connections that asyncio has accepted, a hundred at a time, before we can refuse them.
RESERVE = 512
_logger = logging.getLogger(__name__)


class Connection(web.RequestHandler):
    """aiohttp's handler, that refuses to be one too many and gives up on clients that do not read.

    Headers that take too long are aiohttp's own affair: it closes a connection that has sent no whole request
    `keepalive_timeout` after it was opened or last answered. So is what a client may send ahead: aiohttp (3.14) stops
    reading when 32 requests wait, each of which holds up to 512 KiB of its body.
    """

    __slots__ = ("_refused", "_slots", "_stall_seconds", "_stalled")

    def __init__(self, server: web.Server, limits: ServerLimits, slots: threading.Semaphore, **settings: Any) -> None:
        super().__init__(
            server,
            keepalive_timeout=limits.header_seconds,
            max_line_size=limits.header_bytes,
            max_field_size=limits.header_bytes,
            access_log=None,  # type: ignore[arg-type] # aiohttp's way to say that there is none
            # It would inflate on the event loop, also what nobody reads. `auth` refuses what is compressed.
            auto_decompress=False,
            **settings,
        )
        self._stall_seconds = limits.stall_seconds
        self._slots = slots
        self._refused = False
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if not self._slots.acquire(blocking=False):
            self._refused = True
            _refuse(transport)
            return
        _expect_acknowledgement(transport, self._stall_seconds)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.resume_timer()
        if not self._refused:
            self._slots.release()
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """What a refused client still sends is not read."""
        if not self._refused:
            super().data_received(data)

    def pause_writing(self) -> None:
        """All buffers are full: from now on the client's time runs."""
        super().pause_writing()
        transport = self.transport
        if transport is not None:
            self._stalled = asyncio.get_running_loop().call_later(self._stall_seconds, transport.abort)

    def resume_writing(self) -> None:
        self.resume_timer()
        super().resume_writing()

    def resume_timer(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    async def finish_response(self, request: Any, resp: Any, start_time: float | None) -> tuple[Any, bool]:
        """Send an answer, then let all other connections have their turn before the next request is read.

        aiohttp handles pipelined requests in a loop. From Python 3.12 on it starts each handler eagerly, and a handler
        that never waits (a refusal, `/health`) returns to this loop without a turn of the event loop: 2,000 requests
        that one packet brought were answered while all streams stood still.
        """
        sent = await super().finish_response(request, resp, start_time)
        await asyncio.sleep(0)
        return sent

    def handle_error(
        self, request: Any, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What aiohttp says of broken HTTP, in the shape of all errors."""
        super().handle_error(request, status, exc, message)  # logs it, and raises where an answer has begun
        error = HttpError(400, f"the request could not be read ({type(exc).__name__}); send it as HTTP/1.1")
        if status >= 500:
            error = HttpError(status, "the server failed on this request", "server_error")
        response = error.response()
        response.force_close()
        return response


class Listener(web.BaseSite):
    """A site of a runner whose connections are `Connection`s."""

    __slots__ = ("_host", "_limits", "_port", "_settings")

    def __init__(self, runner: web.AppRunner, host: str, port: int, limits: ServerLimits, **settings: Any) -> None:
        super().__init__(runner)
        self._host = host
        self._port = port
        self._limits = limits
        self._settings = settings

    @property
    def name(self) -> str:
        """The address, as a URL; port 0 is what it came to once it listens."""
        return f"http://[{self._host}]:{self._port}" if ":" in self._host else f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        """Listen. Raises OSError or OverflowError if the address cannot be used."""
        await super().start()
        loop, server, wanted = asyncio.get_running_loop(), self._runner.server, self._limits.connections
        assert server is not None
        most = room_for(wanted)
        if most < wanted:
            words = "At most %d connections are taken instead of %d: the process may open no more files (ulimit -n)"
            _logger.warning(words, most, wanted)
        slots = threading.Semaphore(most)
        self._server = await loop.create_server(
            lambda: Connection(server, self._limits, slots, loop=loop, **self._settings),
            self._host,
            self._port,
            # So many are accepted at a time, before the first of them is counted: a few times that is in the reserve.
            backlog=min(100, max(8, most // 4)),
        )
        self._port = self._server.sockets[0].getsockname()[1]


def room_for(connections: int) -> int:
    """As many of them as may be open at once: the process's soft limit is raised as far as the hard one allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    wanted = connections + RESERVE
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < most:
        # A system may allow less than it says.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return max(1, min(connections, soft - min(RESERVE, soft // 2)))


def _refuse(transport: asyncio.Transport) -> None:
    body = _FULL.response().body
    assert isinstance(body, bytes)
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
    )
    transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    transport.close()


def _expect_acknowledgement(transport: asyncio.Transport, seconds: float) -> None:
    """Have the system give up on a client whose machine or network has gone without a word."""
    connected = transport.get_extra_info("socket")
    if connected is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
