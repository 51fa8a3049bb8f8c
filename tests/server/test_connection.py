"""Connections within limits: too many, too slow to send, too slow to read, and not HTTP at all."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import compression_utils, web

from adaptspec.server.app import make_app
from adaptspec.server.auth import Access
from adaptspec.server.connection import ConnectionLimits
from adaptspec.server.listener import Listener
from adaptspec.telemetry.metrics import Metrics
from tests.server.bounds import bounds
from tests.server.test_listener import start

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@asynccontextmanager
async def serving(
    engine: Any,
    tokenizer: Any,
    connections: ConnectionLimits = ConnectionLimits(),
    *,
    api_keys: Collection[str] = (),
    **limits: float,
) -> AsyncIterator[int]:
    with bounds(**limits):
        url, task = await start(
            make_app(engine, tokenizer, Metrics(), access=Access(api_keys)), connection_limits=connections
        )
        try:
            yield int(url.rsplit(":", 1)[1])
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def talk(port: int, sent: bytes) -> tuple[int, Any]:
    """The server's answer to bytes, until it closes: status and JSON."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        answer = await asyncio.wait_for(reader.read(), 5.0)
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, json.loads(body) if body else None


async def test_one_connection_too_many_is_refused(engine: Any, tokenizer: Any) -> None:
    """503 in the usual shape; when another closes there is room again."""
    async with serving(engine, tokenizer, ConnectionLimits(connections=2)) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await asyncio.sleep(0.05)
        status, body = await talk(port, b"")
        assert (status, body["error"]["code"]) == (503, "too_many_connections")
        for _, writer in held:
            writer.close()
        await asyncio.sleep(0.05)
        assert (await talk(port, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))[0] == 200


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: x\r\nX: "])
async def test_headers_that_do_not_come_close_the_connection(engine: Any, tokenizer: Any, sent: bytes) -> None:
    async with serving(engine, tokenizer, ConnectionLimits(header_seconds=0.05)) as port:
        assert await talk(port, sent) == (0, None)


async def test_a_body_that_does_not_come_is_408(engine: Any, tokenizer: Any) -> None:
    async with serving(engine, tokenizer, body_seconds=0.05) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST + b'Content-Length: 100\r\n\r\n{"prompt": ')
        line = await asyncio.wait_for(reader.readline(), 5.0)
        writer.close()
    assert line.startswith(b"HTTP/1.1 408")
    assert not engine.seen


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such option")
async def test_a_client_whose_machine_has_vanished_is_dropped_by_the_system(engine: Any, tokenizer: Any) -> None:
    """Its bytes stay unacknowledged for as long as a client may stall; by itself the system waits a quarter hour."""
    app = make_app(engine, tokenizer, Metrics())

    async def timeout(http: web.Request) -> web.Response:
        assert http.transport is not None
        connected = http.transport.get_extra_info("socket")
        return web.json_response(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))

    app.router.add_get("/timeout", timeout)
    url, task = await start(app, connection_limits=ConnectionLimits(stall_seconds=12.5))
    sent = b"GET /timeout HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert await talk(int(url.rsplit(":", 1)[1]), sent) == (200, 12_500)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_client_that_does_not_read_is_dropped(engine: Any, tokenizer: Any) -> None:
    """A stream whose reader stands still with full buffers ends, and its request is aborted."""
    engine.target = engine.target.__class__(**{**engine.target.__dict__, "context": 10**6})
    async with serving(engine, tokenizer, ConnectionLimits(stall_seconds=0.2)) as port:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            body = json.dumps({"prompt": "x", "max_tokens": 200_000, "stream": True}).encode()
            client.sendall(POST + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)

            async def dropped() -> None:
                while not engine.aborted:
                    await asyncio.sleep(0.02)

            await asyncio.wait_for(dropped(), 10.0)


async def test_a_full_server_refuses_before_it_reads_the_body(engine: Any, tokenizer: Any) -> None:
    """429 with an integer Retry-After, while the body is still on its way."""
    engine.capacity = 0
    async with serving(engine, tokenizer) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST + b"Content-Length: 1000000\r\n\r\n{")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5.0)
        writer.close()
    assert head.startswith(b"HTTP/1.1 429")
    assert b"Retry-After: 1\r\n" in head


PIPELINED = {
    "a broken body": POST + b'Content-Length: 12\r\n\r\n{"prompt": 1',
    "no JSON": b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx",
    "no such route": b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
    "no key": b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a good request": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a good list": b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("kind", PIPELINED)
async def test_other_tasks_run_between_pipelined_requests(engine: Any, tokenizer: Any, kind: str) -> None:
    """However fast they are answered: one packet holds thousands, and streams would stand still for seconds."""
    app = make_app(engine, tokenizer, Metrics(), access=Access(["key"] if kind == "no key" else ()))
    order: list[str] = []

    async def answered(http: web.Request, response: web.StreamResponse) -> None:
        order.append("answer")

    async def take_turns() -> None:
        while True:
            order.append("turn")
            await asyncio.sleep(0)

    app.on_response_prepare.append(answered)
    url, task = await start(app)
    turns = asyncio.create_task(take_turns())
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        writer.write(PIPELINED[kind] * 200)
        text = b""
        while text.count(b"HTTP/1.1 ") < 200:
            text += await asyncio.wait_for(reader.read(2**16), 10.0)
        writer.close()
    finally:
        turns.cancel()
        task.cancel()
        await asyncio.gather(task, turns, return_exceptions=True)
    answers = [place for place, what in enumerate(order) if what == "answer"]
    assert len(answers) == 200
    assert all("turn" in order[one:other] for one, other in pairwise(answers)), "two in one turn of the loop"


async def test_a_client_that_sends_ahead_is_not_read_without_end(engine: Any, tokenizer: Any) -> None:
    """Behind a request that runs, some wait; the rest stays with the client. What the system holds is a few MB."""
    going_on, stream = asyncio.Event(), engine.stream

    async def held(request: Any) -> AsyncIterator[Any]:
        await going_on.wait()
        async for delta in stream(request):
            yield delta

    engine.stream = held
    body = json.dumps({"prompt": "x", "user": "x" * 250_000}).encode()
    one = POST + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    async with serving(engine, tokenizer) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            sent, idle = 0, 0
            while idle < 2000 and sent < 256 * len(one):
                try:
                    sent += client.send(one[sent % len(one) :])
                    idle = 0
                except BlockingIOError:
                    idle += 1
                await asyncio.sleep(0)
        going_on.set()
    assert sent < 128 * len(one), "32 MB"


BOMB = gzip.compress(b"x" * 2**24)


@pytest.mark.parametrize("coding", ["Content-Encoding: gzip", "Content-Encoding: identity, deflate",
                                    "Content-Encoding: Br", "Content-Encoding: zstd", "content-encoding: x-own",
                                    "Transfer-Encoding: gzip, chunked",
                                    "Content-Encoding: identity\r\nContent-Encoding: gzip",
                                    "Content-Encoding: gzip\r\nContent-Encoding: identity",
                                    "Content-Encoding: identity\r\nX: y\r\ncontent-encoding: identity, br",
                                    "Content-Encoding:\r\nContent-Encoding:\r\nContent-Encoding: deflate",
                                    "Content-Encoding: identity\r\nTransfer-Encoding: gzip, chunked",
                                    "Transfer-Encoding: chunked\r\nContent-Encoding: gzip"])  # fmt: skip
@pytest.mark.parametrize("place", ["POST /v1/completions", "GET /health", "POST /nowhere", "PUT /v1/models"])
async def test_a_compressed_body_is_refused_before_it_has_come(
    engine: Any, tokenizer: Any, place: str, coding: str
) -> None:
    """415 on every route, with a key or without, as soon as the headers are there; the connection is then closed."""
    async with serving(engine, tokenizer, api_keys=["key"]) as port:
        length = "" if "Transfer-Encoding" in coding else "Content-Length: 1000000\r\n"
        head = f"{place} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{length}{coding}\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode())
        answer = await asyncio.wait_for(reader.readuntil(b"}}"), 5.0)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 415")
    assert b"\r\nConnection: close\r\n" in answer
    assert b"\r\nAccept-Encoding: identity\r\n" in answer
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "unsupported_content_encoding")


@pytest.mark.parametrize("coding", ["identity", "", " Identity ,identity", "identity\r\nContent-Encoding: identity"])
async def test_a_body_without_a_coding_may_declare_it(engine: Any, tokenizer: Any, coding: str) -> None:
    async with serving(engine, tokenizer) as port:
        head = f"Content-Encoding: {coding}\r\nConnection: close\r\nContent-Length: 15\r\n\r\n".encode()
        status, _ = await talk(port, POST + head + b'{"prompt": "x"}')
    assert status == 200


@pytest.mark.parametrize("pieces", [1, 50])
async def test_nothing_is_ever_inflated(
    engine: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    """Not after an early answer either, when aiohttp reads on though no handler wants it: that stalled all streams."""

    def inflate(self: Any, *args: Any, **options: Any) -> None:
        raise AssertionError("this must not be inflated")

    monkeypatch.setattr(compression_utils.ZLibDecompressor, "__init__", inflate)
    async with serving(engine, tokenizer, api_keys=["key"]) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: {len(BOMB)}\r\n\r\n"
        writer.write(head.encode())
        size = -(-len(BOMB) // pieces)
        for start in range(0, len(BOMB), size):
            writer.write(BOMB[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)
        answer = await asyncio.wait_for(reader.read(), 5.0)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 415")


class System:
    """A system with limits of its own, in place of the module `resource`."""

    def __init__(self, limits: tuple[int, int], *, refuses: bool = False) -> None:
        self.limits, self.refuses = limits, refuses
        self.asked: list[tuple[int, int]] = []

    def getrlimit(self, _: int) -> tuple[int, int]:
        return self.limits

    def setrlimit(self, _: int, limits: tuple[int, int]) -> None:
        if self.refuses:
            raise ValueError("not allowed to raise maximum limit")
        self.asked.append(limits)


async def test_files_that_may_be_open_limit_connections(
    engine: Any, tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """One connection too many gets its 503, and the log says why once."""
    runner = web.AppRunner(make_app(engine, tokenizer, Metrics()))
    await runner.setup()
    listener = Listener(runner, "127.0.0.1", 0, system=System((4, 4)))
    await listener.start()
    try:
        port = int(listener.name.rpartition(":")[2])
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert (await talk(port, b""))[0] == 503
        for _, writer in held:
            writer.close()
    finally:
        await runner.cleanup()
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "At most 2 connections are taken instead of 1024" in record.getMessage()


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def answer(reader: asyncio.StreamReader) -> int:
    """The status of the next answer, which is read whole. Interim answers are skipped."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5.0)
    if head.startswith(b"HTTP/1.1 102"):
        return await answer(reader)
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
    if b"content-length" in fields:
        await reader.readexactly(int(fields[b"content-length"]))
    return int(head.split()[1])


async def test_an_idle_connection_outlives_the_time_for_headers(engine: Any, tokenizer: Any) -> None:
    """Proxies keep theirs for 60 seconds: ours has a time of its own, and a request that begins one for its headers."""
    async with serving(engine, tokenizer, ConnectionLimits(header_seconds=0.1, idle_seconds=60.0)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(HEALTH)
            assert await answer(reader) == 200
            await asyncio.sleep(0.25)
        writer.write(HEALTH[:20])
        assert await asyncio.wait_for(reader.read(), 5.0) == b""
        writer.close()


async def test_headers_are_bound_from_their_first_byte_however_slowly_they_come(engine: Any, tokenizer: Any) -> None:
    """Bytes now and then do not prolong it."""
    async with serving(engine, tokenizer, ConnectionLimits(header_seconds=0.2, idle_seconds=60.0)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEALTH)
        assert await answer(reader) == 200
        closed, sent = asyncio.create_task(reader.read()), 0
        while not closed.done():
            assert sent < len(HEALTH) - 1, "the whole request went through"
            writer.write(HEALTH[sent : sent + 1])
            sent += 1
            await asyncio.sleep(0.02)
        writer.close()


async def test_an_idle_connection_is_closed_after_its_time(engine: Any, tokenizer: Any) -> None:
    async with serving(engine, tokenizer, ConnectionLimits(header_seconds=60.0, idle_seconds=0.05)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEALTH)
        assert await answer(reader) == 200
        assert await asyncio.wait_for(reader.read(), 5.0) == b""
        writer.close()


BEGINNINGS = [1, 20, len(HEALTH)]


@pytest.mark.parametrize("size", BEGINNINGS)
@pytest.mark.parametrize("when", ["read before", "in the socket", "a moment before"])
async def test_a_request_that_begins_before_the_close_is_answered(
    engine: Any, tokenizer: Any, size: int, when: str
) -> None:
    """However much of it has come, and whether or not it was read when the idle time ends.

    The event loop stands still until that time is over, so the order of events is always the same: bytes that were
    sent before the loop looks are read first; those that a callback sends right before the end lie in the socket.
    """
    async with serving(engine, tokenizer, ConnectionLimits(idle_seconds=1.0)) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(client, HEALTH)
            assert b"200 OK" in await loop.sock_recv(client, 1000)
            begun = HEALTH[:size]
            if when == "read before":
                client.send(begun)
                await asyncio.sleep(0.01)
            elif when == "in the socket":
                client.send(begun)
            else:
                loop.call_later(0.0, client.send, begun)
            time.sleep(1.1)
            await asyncio.sleep(0.1)
            client.send(HEALTH[size:])
            assert b"200 OK" in await asyncio.wait_for(loop.sock_recv(client, 1000), 5.0)


def generation(**more: Any) -> bytes:
    body = json.dumps({"prompt": "x", "max_tokens": 5, **more}).encode()
    return POST + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        (generation(), 1),
        (generation(stream=True), 1),
        (generation() * 3, 3),
        (generation() + HEALTH + generation(max_tokens=2), 3),
        (HEALTH, 1),
        (b"GET /v1/models HTTP/1.0\r\n\r\n", 1),
        (generation().replace(b"HTTP/1.1", b"HTTP/1.0"), 1),
        (b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", 1),
    ],
)
async def test_a_client_that_has_shut_down_its_writing_side_is_answered(
    engine: Any, tokenizer: Any, sent: bytes, answers: int
) -> None:
    """As `nc -N` does. Then the connection is closed."""
    engine.pause = 0.02
    async with serving(engine, tokenizer) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        writer.write_eof()
        text = await asyncio.wait_for(reader.read(), 10.0)
        writer.close()
    text = text.replace(b"HTTP/1.1 102 Processing\r\n\r\n", b"")
    assert text.count(b"HTTP/1.") == answers
    assert not engine.aborted
    if b'"stream": true' in sent:
        assert text.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_an_interim_answer_comes_before_the_answer_alone(engine: Any, tokenizer: Any) -> None:
    """And only to a client of HTTP/1.1 that has shut down its writing side."""
    engine.pause = 0.02
    async with serving(engine, tokenizer) as port:
        for sent, half_closes, interim in (
            (generation(max_tokens=10), True, 1),
            (generation(max_tokens=10), False, 0),
            (generation(max_tokens=10).replace(b"HTTP/1.1", b"HTTP/1.0"), True, 0),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent.replace(b"Host: localhost", b"Host: localhost\r\nConnection: close"))
            if half_closes:
                writer.write_eof()
            text = await asyncio.wait_for(reader.read(), 5.0)
            writer.close()
            assert text.count(b"HTTP/1.1 102 Processing\r\n\r\n") == interim
            assert text.startswith(b"HTTP/1.1 102") == bool(interim)


async def until(condition: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), 10.0)


@pytest.mark.parametrize("quiet", [True, False])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
async def test_closed_and_half_closed_clients_are_distinguished(
    engine: Any, tokenizer: Any, stream: bool, quiet: bool, version: bytes
) -> None:
    """Its request is aborted, though no token comes by which to see it."""
    engine.pause = 30.0 if quiet else 0.02
    async with serving(engine, tokenizer, quiet_seconds=0.05 if stream else 30.0) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(generation(stream=stream, max_tokens=200).replace(b"HTTP/1.1", version))
        await until(lambda: bool(engine.running))
        await asyncio.sleep(0.1)
        writer.close()
        await until(lambda: bool(engine.aborted))
    assert engine.running == 0


@pytest.mark.parametrize(
    "sent", [generation()[:-1], generation()[:-30], POST + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"pro', HEALTH[:-2]]
)
async def test_what_ends_in_the_middle_of_a_request_is_closed(engine: Any, tokenizer: Any, sent: bytes) -> None:
    """The rest will never come; the handler does not wait for its time."""
    async with serving(engine, tokenizer, ConnectionLimits(header_seconds=60.0), body_seconds=60.0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        await asyncio.sleep(0.05)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 5.0) == b""
        writer.close()
    assert not engine.seen


CUTS = ["request line", "header name", "host", "length name", "length", "headers", "no body", "body", "chunk", "none"]


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("cut", CUTS)
async def test_a_request_cut_off_by_the_end_of_the_connection_never_runs(
    engine: Any, tokenizer: Any, before: int, cut: str
) -> None:
    """And the complete requests before it are answered. RFC 9112, section 8, forbids to act on incomplete messages."""
    second = generation(max_tokens=7)
    head, chunked = second.partition(b"\r\n\r\n")[0], POST + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"pro'
    rest = {
        "request line": b"POST /v1/compl",
        "header name": b"POST /v1/completions HTTP/1.1\r\nHo",
        "host": b"POST /v1/completions HTTP/1.1\r\nHost: local",
        "length name": head[: head.index(b"-Length")],
        "length": head[:-1],
        "headers": head + b"\r\n",
        "no body": head + b"\r\n\r\n",
        "body": second[:-1],
        "chunk": chunked,
        "none": b"",
    }[cut]
    engine.pause = 0.02
    async with serving(engine, tokenizer, ConnectionLimits(header_seconds=60.0), body_seconds=60.0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(generation() * before + rest)
        writer.write_eof()
        text = await asyncio.wait_for(reader.read(), 10.0)
        writer.close()
    text = text.replace(b"HTTP/1.1 102 Processing\r\n\r\n", b"")
    assert text.count(b"HTTP/1.1 200 OK") == text.count(b"HTTP/1.") == before
    assert [request.sampling.max_tokens for request in engine.seen] == [5] * before
    assert not engine.aborted


@pytest.mark.parametrize("cut", [HEALTH[:6], HEALTH[:-2], HEALTH[:-1], generation()[:-1]])
@pytest.mark.parametrize("requests", [31, 32, 33, 100])
async def test_many_pipelined_requests_are_answered_though_another_is_cut_off(
    engine: Any, tokenizer: Any, requests: int, cut: bytes
) -> None:
    """Also more of them than the connection reads ahead, and those behind an upgrade that is refused."""
    upgrade = HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
    async with serving(engine, tokenizer, ConnectionLimits(header_seconds=60.0), body_seconds=60.0) as port:
        for sent in (HEALTH * requests, upgrade + HEALTH * (requests - 1)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent + cut)
            writer.write_eof()
            text = await asyncio.wait_for(reader.read(), 10.0)
            writer.close()
            assert text.count(b"HTTP/1.1 200 OK") == text.count(b"HTTP/1.1 2") == requests
    assert not engine.seen
