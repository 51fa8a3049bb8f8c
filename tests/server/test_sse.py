"""Streams of events, at a constant rate where that is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.engine.scheduler import PromptProgress
from adaptspec.errors import EngineError, OverloadedError, RequestError
from adaptspec.server.application import make_app
from adaptspec.server.http_errors import answer_errors
from adaptspec.server.limits import ServerLimits
from adaptspec.server.sse import Padding, Silence, filler, respond, sending
from adaptspec.telemetry.live_feed import LiveFeed
from adaptspec.telemetry.metrics import Metrics
from adaptspec.telemetry.request_store import RequestStore

BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "stream": True}
PATH = "/v1/chat/completions"


async def test_headers_tell_everyone_between_not_to_collect(client: Any) -> None:
    async with client.post(PATH, json=BODY) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.headers["x-request-id"].startswith("chatcmpl-")


async def test_a_failure_in_the_middle_is_an_event(post: Any, engine: Any) -> None:
    engine.failing_at = 2
    status, chunks = await post(PATH, **BODY)
    assert status == 200
    assert [len(chunk.get("choices", ())) for chunk in chunks] == [1, 1, 1, 0]
    assert chunks[-1].keys() == {"error"}
    assert "a fuse has blown" in chunks[-1]["error"]["message"]


async def test_an_unexpected_error_in_the_middle_keeps_its_secrets(post: Any, engine: Any, monkeypatch: Any) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a secret path")

    monkeypatch.setattr(engine, "_completion", broken)
    _, chunks = await post(PATH, **BODY)
    assert chunks[-1]["error"]["code"] == "internal_error"
    assert "secret" not in str(chunks)


SMALL = Padding(size=64, seconds=0.001)


@given(st.integers(1, 300))
def test_filler_is_of_any_size_and_means_nothing(size: int) -> None:
    """Comments and empty lines only, whole: no event is begun or ended by it."""
    data = filler(size)
    assert len(data) == size
    assert data.endswith(b"\n")
    assert all(not line or line.startswith(":") for line in data.decode().split("\n"))


async def packets(pieces: list[bytes]) -> list[bytes]:
    sent: list[bytes] = []

    async def write(data: bytes) -> None:
        sent.append(data)

    async with sending(write, SMALL) as padded:
        for piece in pieces:
            await padded(piece)
            await asyncio.sleep(0)
    return sent


@pytest.mark.parametrize("lengths", [[1], [200], [61, 3], [30] * 40, [64] * 3, [5000, 1]])
async def test_packets_have_one_size_and_hold_everything_in_order(lengths: list[int]) -> None:
    pieces = [b"data: " + bytes([97 + i % 26]) * length + b"\n\n" for i, length in enumerate(lengths)]
    sent = await packets(pieces)
    assert {len(packet) for packet in sent} == {64}
    events = [line for line in b"".join(sent).split(b"\n") if line.startswith(b"data: ")]
    assert events == [piece.strip() for piece in pieces]


async def test_a_reader_that_has_gone_ends_it() -> None:
    """The error of the write reaches whoever writes on or leaves, and no task is left behind."""

    async def gone(data: bytes) -> None:
        raise ConnectionResetError

    async def tell() -> None:
        async with sending(gone, SMALL) as padded:
            for _ in range(1000):
                await padded(b"x" * 64)

    before = len(asyncio.all_tasks())
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(tell(), 5.0)
    assert len(asyncio.all_tasks()) == before


@pytest.mark.parametrize("padding", [SMALL, Padding(size=1, seconds=0.0)])
async def test_a_slow_reader_makes_the_writer_wait(padding: Padding) -> None:
    """Else the text of a client that does not read would fill the server's memory. All of it comes in the end."""
    reads, piece = asyncio.Event(), b"data: " + b"x" * 56 + b"\n\n"
    sent, written = bytearray(), 0

    async def write(data: bytes) -> None:
        await reads.wait()
        sent.extend(data)

    async def stream() -> None:
        nonlocal written
        async with sending(write, padding) as send:
            for _ in range(200):
                await send(piece)
                written += 1

    streaming = asyncio.create_task(stream())
    for _ in range(5000):
        await asyncio.sleep(0)
    size = 1 if padding is None else padding.size
    assert not sent
    assert written * len(piece) <= 65 * size + 2 * len(piece), "more than 64 packets wait, and one is on its way"
    reads.set()
    await asyncio.wait_for(streaming, 60.0)
    assert written == 200
    assert sent.count(piece) == 200


async def test_a_padded_stream_says_what_a_plain_one_says(engine: Any, tokenizer: Any) -> None:
    """Over HTTP: the same events, in a body that is a whole number of packets."""
    bodies = []
    for padding in (None, Padding(size=512, seconds=0.002)):
        async with TestClient(TestServer(make_app(engine, tokenizer, Metrics(), padding=padding))) as client:
            body = {"prompt": "x", "max_tokens": 20, "stream": True}
            async with client.post("/v1/completions", json=body) as response:
                bodies.append(await response.read())
    plain, padded = ([line for line in body.split(b"\n") if line.startswith(b"data: ")] for body in bodies)
    assert len(bodies[1]) % 512 == 0
    assert [len(line) for line in plain] == [len(line) for line in padded]
    assert padded[-1] == b"data: [DONE]"


async def test_what_padding_hides_no_feed_tells(engine: Any, tokenizer: Any) -> None:
    """The live feed shows the rounds of all requests to everybody with a key."""
    app = make_app(engine, tokenizer, Metrics(), padding=Padding(), live=LiveFeed(RequestStore()))
    async with TestClient(TestServer(app)) as client:
        for path in ("/live/snapshot", "/live/events", "/"):
            async with client.get(path) as response:
                assert response.status == 404, path


class Hand:
    """A clock that is set by hand; sleepers wake when it passes their time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._moved = asyncio.Condition()

    async def sleep(self, seconds: float) -> None:
        due = self.now + seconds
        async with self._moved:
            await self._moved.wait_for(lambda: self.now >= due)

    async def pass_to(self, when: float) -> None:
        """Let time pass, and all that waits for it run."""
        async with self._moved:
            self.now = when
            self._moved.notify_all()
        for _ in range(20):
            await asyncio.sleep(0)


class Quiet:
    """A stream whose events come when they are put in, and its client's side."""

    def __init__(self, hand: Hand, client: TestClient[Any, Any], progress: list[str]) -> None:
        self.hand, self.client, self.progress = hand, client, progress
        self.events: asyncio.Queue[dict[str, Any] | Exception | None] = asyncio.Queue()

    async def come(self) -> AsyncIterator[dict[str, Any]]:
        while (one := await self.events.get()) is not None:
            if isinstance(one, Exception):
                raise one
            yield one


@asynccontextmanager
async def quiet(padding: Padding | None = None) -> AsyncIterator[Quiet]:
    hand, progress = Hand(), ["waiting"]
    silence = Silence(lambda: progress[0], 5.0, 15.0, lambda: hand.now, hand.sleep)

    async def handler(http: web.Request) -> web.StreamResponse:
        return await respond(http, stream.come(), {"x-own": "1"}, padding, silence)

    app = web.Application(middlewares=[answer_errors])
    app.router.add_get("/", handler)
    async with TestClient(TestServer(app)) as client:
        stream = Quiet(hand, client, progress)
        yield stream


async def read(response: Any, text: str) -> str:
    """What comes next, which must be `text`."""
    found = await asyncio.wait_for(response.content.readexactly(len(text)), 5.0)
    assert found.decode() == text
    return str(found)


async def test_a_silent_stream_sends_its_headers_and_how_far_it_is() -> None:
    """After 5 seconds, and then every 15, until there is an event; comments come between whole events."""
    async with quiet() as stream:
        asked = asyncio.create_task(stream.client.get("/"))
        await asyncio.sleep(0.05)
        await stream.hand.pass_to(4.9)
        assert not asked.done()
        stream.progress[0] = "prompt 1024/6521"
        await stream.hand.pass_to(5.0)
        response = await asyncio.wait_for(asked, 5.0)
        assert (response.status, response.headers["x-own"]) == (200, "1")
        await read(response, ": prompt 1024/6521\n\n")
        await stream.hand.pass_to(19.9)
        stream.progress[0] = "prompt 6144/6521"
        await stream.hand.pass_to(20.0)
        await read(response, ": prompt 6144/6521\n\n")
        await stream.hand.pass_to(30.0)
        stream.events.put_nowait({"a": 1})
        await read(response, 'data: {"a":1}\n\n')
        stream.progress[0] = "waiting"
        await stream.hand.pass_to(44.9)
        await stream.hand.pass_to(45.0)
        await read(response, ": waiting\n\n")
        stream.events.put_nowait(None)
        await read(response, "data: [DONE]\n\n")
        assert await response.content.read() == b""


async def test_a_stream_that_is_not_silent_has_no_comments() -> None:
    async with quiet() as stream:
        asked = asyncio.create_task(stream.client.get("/"))
        await asyncio.sleep(0.05)
        for second in range(40):
            await stream.hand.pass_to(float(second))
            if second % 4 == 3:
                stream.events.put_nowait({"a": second})
        stream.events.put_nowait(None)
        text = await (await asked).text()
    assert "\n:" not in f"\n{text}"
    assert text.count("data: ") == 11


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (OverloadedError("the queue is full"), 429, "the queue is full"),
        (RequestError("too long", "prompt"), 400, "too long"),
        (EngineError("a fuse has blown"), 500, "a fuse"),
        (RuntimeError("a secret path"), 500, "the server failed"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
async def test_what_fails_before_the_headers_has_a_status_and_after_them_is_an_event(
    error: Exception, status: int, words: str, late: bool
) -> None:
    """No refusal becomes a 200: they come at once."""
    async with quiet() as stream:
        asked = asyncio.create_task(stream.client.get("/"))
        await asyncio.sleep(0.05)
        await stream.hand.pass_to(5.0 if late else 4.9)
        stream.events.put_nowait(error)
        response = await asyncio.wait_for(asked, 5.0)
        text = await response.text()
    assert response.status == (200 if late else status)
    assert words in text
    assert "secret" not in text
    if late:
        assert text.startswith(": waiting\n\ndata: {")
        assert text.endswith("}\n\ndata: [DONE]\n\n")


async def test_a_silent_stream_of_constant_rate_begins_too() -> None:
    async with quiet(Padding(size=64, seconds=0.001)) as stream:
        asked = asyncio.create_task(stream.client.get("/"))
        await asyncio.sleep(0.05)
        await stream.hand.pass_to(5.0)
        response = await asyncio.wait_for(asked, 5.0)
        assert (await asyncio.wait_for(response.content.readexactly(64), 5.0)).startswith(b": waiting\n\n:")
        stream.events.put_nowait({"a": 1})
        stream.events.put_nowait(None)
        text = (await response.content.read()).decode()
    assert [line for line in text.split("\n") if line and not line.startswith(":")] == [
        'data: {"a":1}',
        "data: [DONE]",
    ]


ROUTES = {
    "/v1/chat/completions": BODY,
    "/v1/completions": {"prompt": "x", "max_tokens": 5, "stream": True},
    "/v1/responses": {"input": "x", "max_output_tokens": 5, "stream": True},
}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (PromptProgress(1024, 6521, 0), ": prompt 1024/6521"),
        (PromptProgress(6521, 6521, 0), ": waiting"),
        (PromptProgress(0, 0, 7), ": waiting, 7 ahead"),
        (PromptProgress(0, 0, 0), ": waiting"),
        (PromptProgress(100, 200, 3), ": prompt 100/200"),
    ],
)
async def test_every_streaming_route_says_how_far_it_is(
    engine: Any, tokenizer: Any, path: str, progress: PromptProgress, words: str
) -> None:
    engine.progress, engine.pause = progress, 0.05
    limits = ServerLimits(quiet_seconds=0.001, comment_seconds=0.001)
    app = make_app(engine, tokenizer, Metrics(), limits=limits)
    async with TestClient(TestServer(app)) as client, client.post(path, json=ROUTES[path]) as response:
        text = await response.text()
    comments = [line for line in text.split("\n") if line.startswith(":")]
    assert set(comments) == {words}
    assert text.startswith(words)
    assert '"error":{' not in text


@pytest.mark.parametrize("path", ROUTES)
async def test_refusals_of_a_stream_keep_their_status_however_impatient_it_is(
    engine: Any, tokenizer: Any, path: str
) -> None:
    limits = ServerLimits(quiet_seconds=1e-9, comment_seconds=1e-9)
    async with TestClient(TestServer(make_app(engine, tokenizer, Metrics(), limits=limits))) as client:
        statuses = []
        for change, refusal in (({}, OverloadedError("full")), ({"temperature": -1}, None), ({"stream": 3}, None)):
            engine.refusal = refusal
            async with client.post(path, json=ROUTES[path] | change) as response:
                statuses.append(response.status)
    assert statuses == [429, 400, 400]
