"""One client's connection, within bounds: how many there are, how long headers may take, how long nobody reads."""

from __future__ import annotations

import asyncio
import logging
import resource
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aiohttp import HttpVersion11, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from adaptspec.server.http_errors import HttpError
from adaptspec.server.limits import ServerLimits

_FULL = HttpError(503, "too many connections are open; try again", "server_error", "too_many_connections")

# Files of our own, and connections that asyncio has accepted, a hundred at a time, before we can refuse them.
RESERVE = 512
OLD_CLIENT_SECONDS = 1.0  # for the answer to a client of HTTP/1.0 that has shut down its writing side
_FIRST_LOOK, _LAST_LOOK = 0.01, 1.0  # seconds between looks whether a half-closed client has gone
_INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"
_logger = logging.getLogger(__name__)


class Connection(web.RequestHandler):
    """aiohttp's handler, that refuses to be one too many and gives up on clients that do not read.

    Three times bound it while no request runs: `header_seconds` for a new connection, `idle_seconds` between two
    requests, and `header_seconds` again from the first byte of a request to the end of its headers. What a client may
    send ahead is aiohttp's own affair: it (3.14) stops reading when 32 requests wait, each of which holds up to 512 KiB
    of its body.

    A client that has shut down its writing side still gets its answer. One that has gone looks the same at first: see
    `eof_received`. `on_half_closed` is called then, if a stream has set it, to send something.
    """

    __slots__ = (
        *("_half_closed", "_header_seconds", "_headers", "_last_body", "_looking", "_probed", "_refused", "_slots"),
        *("_stall_seconds", "_stalled", "on_half_closed"),
    )

    def __init__(self, server: web.Server, limits: ServerLimits, slots: threading.Semaphore, **settings: Any) -> None:
        super().__init__(
            server,
            keepalive_timeout=limits.idle_seconds,
            max_line_size=limits.header_bytes,
            max_field_size=limits.header_bytes,
            access_log=None,  # type: ignore[arg-type] # aiohttp's way to say that there is none
            # It would inflate on the event loop, also what nobody reads. `auth` refuses what is compressed.
            auto_decompress=False,
            **settings,
        )
        self._header_seconds = limits.header_seconds
        self._stall_seconds = limits.stall_seconds
        self._slots = slots
        self._refused = False
        self._stalled: asyncio.TimerHandle | None = None
        self._headers: asyncio.TimerHandle | None = None  # runs while headers may come, and have not
        self._last_body: StreamReader | None = None  # of the newest request whose headers have come
        self._half_closed: float | None = None  # when, on the loop's clock
        self._probed = False  # something was sent since then
        self._looking: asyncio.TimerHandle | None = None  # the next look whether a half-closed client has gone
        self.on_half_closed: Callable[[], object] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if not self._slots.acquire(blocking=False):
            self._refused = True
            _refuse(transport)
            return
        _expect_acknowledgement(transport, self._stall_seconds)
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.resume_timer()
        self._headers_came()
        if self._looking is not None:
            self._looking.cancel()
        if not self._refused:
            self._slots.release()
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """What a refused client still sends is not read."""
        if self._refused:
            return
        if data and self._idle and self._headers is None:
            self._await_headers()
        super().data_received(data)
        if self._messages:
            self._last_body = self._messages[-1][1]
        if not self._idle:
            self._headers_came()

    @property
    def _idle(self) -> bool:
        """Whether it waits for the headers of a request."""
        return self._waiter is not None and not self._waiter.done()

    def _await_headers(self) -> None:
        loop = asyncio.get_running_loop()
        self._headers = loop.call_later(self._header_seconds, self._headers_are_late)

    def _headers_came(self) -> None:
        if self._headers is not None:
            self._headers.cancel()
            self._headers = None

    def _headers_are_late(self) -> None:
        self._headers = None
        self.force_close()

    def _process_keepalive(self) -> None:
        """Called when no request has come for `idle_seconds`. One of which a byte is here by now is answered."""
        idle = self._idle and asyncio.get_running_loop().time() >= self._next_keepalive_close_time
        if not idle:
            super()._process_keepalive()
            return
        self._keepalive_handle = None
        if self._headers is not None:
            return  # a request has begun, whose headers have their own time
        transport = self.transport
        sock = None if transport is None else transport.get_extra_info("socket")
        if transport is not None and sock is not None and not transport.get_write_buffer_size():
            if _has_bytes(sock):
                return  # the event loop reads them next
            # Closing takes another turn of the loop: a request that came until then would be lost after it was
            # acknowledged.
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self.force_close()

    def eof_received(self) -> bool:  # type: ignore[override]  # aiohttp's never keeps a connection open
        """The client sends no more: it has shut down its writing side, or it has gone. Returns whether to answer it.

        Only sending something shows which: the machine of a client that has gone refuses it. A stream that has begun
        sends a comment; before an answer comes the interim response 102, which clients of HTTP/1.1 have to skip. Those
        of HTTP/1.0 have `OLD_CLIENT_SECONDS` for their answer.

        Complete requests are answered; one whose end did not come is not acted on (RFC 9112, section 8).
        """
        if self._idle or self._force_close or self._payload_parser is not None or self._parser is None:
            return False
        if not self._drop_unfinished():
            return False
        if self._half_closed is None:  # the end comes once more where reading was paused meanwhile
            self._half_closed = asyncio.get_running_loop().time()
            self._look_later(_FIRST_LOOK)
        return True

    def _drop_unfinished(self) -> bool:
        """Drop the last request if the rest of its body will never come. Returns whether others are left to answer.

        A request that ends within its headers needs nothing: the parser keeps what came of it, and makes no request of
        it as long as its `feed_eof` is not called.
        """
        body, parser = self._last_body, self._parser
        if body is None or body.is_eof() or parser is None:
            return True
        try:
            parser.feed_eof()  # within a body: raises, unless the parser has all of it and only paused
        except HttpProcessingError:
            pass
        else:
            return True
        about_to_start = self._waiter is not None  # aiohttp takes the first request next, without another look
        if not self._messages or self._messages[-1][1] is not body or (about_to_start and len(self._messages) == 1):
            return False  # the request is being answered
        self._messages.pop()
        self._last_body = None
        return True

    def _look_later(self, seconds: float) -> None:
        self._looking = asyncio.get_running_loop().call_later(seconds, self._look, min(2 * seconds, _LAST_LOOK))

    def _look(self, again: float) -> None:
        """Whether a half-closed client has gone."""
        transport, request, since = self.transport, self._current_request, self._half_closed
        if transport is None or since is None:
            return
        if self._idle:  # the end came when the last answer had just been sent
            self.force_close()
            return
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            transport.abort()
            return
        if request is not None and not self._probed:
            if request.writer.output_size:
                self._probed = True
                if self.on_half_closed is not None:
                    self.on_half_closed()
            elif request.version >= HttpVersion11:
                self._probed = True
                transport.write(_INTERIM)
            elif asyncio.get_running_loop().time() - since > OLD_CLIENT_SECONDS:
                transport.abort()
                return
        self._look_later(again)

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
        if self._messages:  # aiohttp may have read requests behind a refused upgrade
            self._last_body = self._messages[-1][1]
            if self._half_closed is not None:
                self._drop_unfinished()
        if self._half_closed is not None and not self._messages:
            self.close()  # no other request can come
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

    __slots__ = ("_host", "_limits", "_port", "_settings", "_system")

    def __init__(
        self,
        runner: web.AppRunner,
        host: str,
        port: int,
        limits: ServerLimits,
        *,
        system: Any = resource,
        **settings: Any,
    ) -> None:
        """`system`: see `room_for`."""
        super().__init__(runner)
        self._system = system
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
        most = room_for(wanted, self._system)
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


def room_for(connections: int, system: Any = resource) -> int:
    """As many of them as may be open at once: the process's soft limit is raised as far as the hard one allows.

    `system` gets and sets limits, as the module `resource` does.
    """
    limits: tuple[int, int] = system.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = limits
    if soft == resource.RLIM_INFINITY:
        return connections
    wanted = connections + RESERVE
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < most:
        # A system may allow less than it says.
        with suppress(ValueError, OSError):
            system.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
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


def _has_bytes(sock: Any) -> bool:
    """Whether something has come that was not read yet; the end counts."""
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _expect_acknowledgement(transport: asyncio.Transport, seconds: float) -> None:
    """Have the system give up on a client whose machine or network has gone without a word."""
    connected = transport.get_extra_info("socket")
    if connected is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
