"""One client's connection, with limits on headers, idle time and clients that do not read."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import HttpVersion11, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from adaptspec.errors import DrainingError
from adaptspec.server.errors import HttpError

_FULL = HttpError(503, "too many connections are open; try again", "server_error", "too_many_connections")

OLD_CLIENT_SECONDS = 1.0  # for the answer to a client of HTTP/1.0 that has shut down its writing side
_FIRST_PROBE, _LAST_PROBE = 0.01, 1.0  # seconds between probes whether a half-closed client has gone
_INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"


@dataclass(frozen=True)
class ConnectionLimits:
    """What clients may use before a request of theirs runs. Sizes in bytes, times in seconds."""

    connections: int = 1024  # at once, or what the files that may be open have room for; more get 503
    header_bytes: int = 8190  # of one header, and of the request line
    header_seconds: float = 10.0  # for a request's headers: from their first byte, or the connection's beginning
    idle_seconds: float = 75.0  # between two requests of one connection; proxies keep theirs for 60 or so
    stall_seconds: float = 50.0  # without reading, while the answer fills all buffers


class Connection(web.RequestHandler):
    """aiohttp's handler, which also refuses excess connections and drops clients that do not read.

    Three times bound it while no request runs: `header_seconds` for a new connection, `idle_seconds` between two
    requests, and `header_seconds` again from the first byte of a request to the end of its headers. aiohttp (3.14)
    bounds what a client may send ahead: it stops reading when 32 requests wait, each with up to 512 KiB of its body.

    A client that has shut down its writing side still gets its answer; a client that has gone looks the same at first
    (see `eof_received`). `on_half_closed`, if a stream has set it, is then called to send something.
    """

    __slots__ = (
        *("_half_closed_at", "_header_timer", "_last_body", "_limits", "_probe_timer", "_probed", "_refused", "_slots"),
        *("_stall_timer", "on_half_closed"),
    )

    def __init__(
        self, server: web.Server, limits: ConnectionLimits, slots: threading.Semaphore, **settings: Any
    ) -> None:
        super().__init__(
            server,
            keepalive_timeout=limits.idle_seconds,
            max_line_size=limits.header_bytes,
            max_field_size=limits.header_bytes,
            access_log=None,  # type: ignore[arg-type] # aiohttp's way to switch it off
            # Inflating blocks the event loop, also for bodies that are never read. `auth` refuses compressed ones.
            auto_decompress=False,
            **settings,
        )
        self._limits = limits
        self._slots = slots
        self._refused = False
        self._stall_timer: asyncio.TimerHandle | None = None
        self._header_timer: asyncio.TimerHandle | None = None  # runs from the first byte of headers to their end
        self._last_body: StreamReader | None = None  # of the newest request whose headers have come
        self._half_closed_at: float | None = None  # on the loop's clock
        self._probed = False  # bytes were sent since then
        self._probe_timer: asyncio.TimerHandle | None = None
        self.on_half_closed: Callable[[], object] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if not self._slots.acquire(blocking=False):
            self._refused = True
            _refuse(transport)
            return
        _expect_acknowledgement(transport, self._limits.stall_seconds)
        super().connection_made(transport)
        self._start_header_timer()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_stall_timer()
        self._stop_header_timer()
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        if not self._refused:
            self._slots.release()
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return  # no bytes of a refused client are read
        if data and self._idle and self._header_timer is None:
            self._start_header_timer()
        super().data_received(data)
        if self._messages:
            self._last_body = self._messages[-1][1]
        if not self._idle:
            self._stop_header_timer()

    @property
    def _idle(self) -> bool:
        """Whether it waits for the headers of a request."""
        return self._waiter is not None and not self._waiter.done()

    def _start_header_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._header_timer = loop.call_later(self._limits.header_seconds, self._on_late_headers)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _on_late_headers(self) -> None:
        self._header_timer = None
        self.force_close()

    def refuse_unread_body(self) -> None:
        """Have the reading of a body that still arrives fail with DrainingError."""
        request = self._current_request
        if request is not None and not request.content.is_eof():
            request.content.set_exception(DrainingError())

    def _process_keepalive(self) -> None:
        """Called when no request has come for `idle_seconds`. A request whose first byte is here is still answered."""
        idle = self._idle and asyncio.get_running_loop().time() >= self._next_keepalive_close_time
        if not idle:
            super()._process_keepalive()
            return
        self._keepalive_handle = None
        if self._header_timer is not None:
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
        if self._half_closed_at is None:  # the end comes once more where reading was paused meanwhile
            self._half_closed_at = asyncio.get_running_loop().time()
            self._probe_later(_FIRST_PROBE)
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

    def _probe_later(self, seconds: float) -> None:
        self._probe_timer = asyncio.get_running_loop().call_later(seconds, self._probe, min(2 * seconds, _LAST_PROBE))

    def _probe(self, again: float) -> None:
        """Whether a half-closed client has gone."""
        transport, request, since = self.transport, self._current_request, self._half_closed_at
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
        self._probe_later(again)

    def pause_writing(self) -> None:
        """All buffers are full: the client has `stall_seconds` to read on."""
        super().pause_writing()
        transport = self.transport
        if transport is not None:
            self._stall_timer = asyncio.get_running_loop().call_later(self._limits.stall_seconds, transport.abort)

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    async def finish_response(self, request: Any, resp: Any, start_time: float | None) -> tuple[Any, bool]:
        """Send an answer, then let all other connections have their turn before the next request is read.

        aiohttp handles pipelined requests in a loop. From Python 3.12 on it starts each handler eagerly, and a handler
        that never waits (a refusal, `/health`) returns to this loop without a turn of the event loop: 2,000 requests
        that one packet brought were answered while all streams stood still.
        """
        sent = await super().finish_response(request, resp, start_time)
        if request.content.exception() is not None:
            self.force_close()  # the rest of a refused body is not read
        if self._messages:  # aiohttp may have read requests behind a refused upgrade
            self._last_body = self._messages[-1][1]
            if self._half_closed_at is not None:
                self._drop_unfinished()
        if self._half_closed_at is not None and not self._messages:
            self.close()  # no other request can come
        await asyncio.sleep(0)
        return sent

    def handle_error(
        self, request: Any, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to broken HTTP, in the shape of all errors."""
        super().handle_error(request, status, exc, message)  # logs it, and raises where an answer has begun
        error = HttpError(400, f"the request could not be read ({type(exc).__name__}); send it as HTTP/1.1")
        if status >= 500:
            error = HttpError(status, "the server failed on this request", "server_error")
        response = error.response()
        response.force_close()
        return response


def _refuse(transport: asyncio.Transport) -> None:
    body = _FULL.response().body
    assert isinstance(body, bytes)
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
    )
    transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    transport.close()


def _has_bytes(sock: Any) -> bool:
    """Whether bytes, or the end of the connection, wait to be read."""
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _expect_acknowledgement(transport: asyncio.Transport, seconds: float) -> None:
    """Have the system drop a client whose machine or network has vanished: it acknowledges no bytes."""
    connected = transport.get_extra_info("socket")
    if connected is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
