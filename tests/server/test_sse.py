"""Streams of events: their headers, their errors, and comments while there is no event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from adaptspec.engine.scheduler import PromptProgress
from adaptspec.errors import EngineError, OverloadedError, RequestError
from adaptspec.server.app import make_app
from adaptspec.server.errors import error_responses
from adaptspec.server.sse import Silence, respond
from adaptspec.telemetry.metrics import Metrics
from tests.server.bounds import bounds

BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "stream": True}
PATH = "/v1/chat/completions"


async def test_headers_keep_proxies_from_collecting_events(client: Any) -> None:
    async with client.post(PATH, json=BODY) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.headers["X-Accel-Buffering"] == "no", "nginx would keep events until it has a block of them"
        assert response.headers["x-request-id"].startswith("chatcmpl-")


async def test_a_failure_in_the_middle_is_an_event(post: Any, engine: Any) -> None:
    engine.failing_at = 2
    status, chunks = await post(PATH, **BODY)
    assert status == 200
    assert [len(chunk.get("choices", ())) for chunk in chunks] == [1, 1, 1, 0]
    assert chunks[-1].keys() == {"error"}
    assert "a fuse has blown" in chunks[-1]["error"]["message"]


async def test_an_unexpected_error_in_the_middle_keeps_its_secrets(post: Any, engine: Any) -> None:
    stream = engine.stream

    async def broken(request: Any) -> AsyncIterator[Any]:
        yield await anext(stream(request))
        raise RuntimeError("a secret path")

    engine.stream = broken
    _, chunks = await post(PATH, **BODY)
    assert chunks[-1]["error"]["code"] == "internal_error"
    assert "secret" not in str(chunks)


class ManualClock:
    """A clock that the test sets; sleepers wake when it passes their time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept = asyncio.Event()  # set once a task has begun to sleep
        self._moved = asyncio.Condition()

    async def sleep(self, seconds: float) -> None:
        due = self.now + seconds
        self.slept.set()
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

    def __init__(self, clock: ManualClock, client: TestClient[Any, Any], progress: list[str]) -> None:
        self.clock, self.client, self.progress = clock, client, progress
        self.events: asyncio.Queue[dict[str, Any] | Exception | None] = asyncio.Queue()

    async def ask(self) -> asyncio.Task[Any]:
        """Send the request. When this returns, the stream waits for its first event."""
        asked = asyncio.create_task(self.client.get("/"))
        await self.clock.slept.wait()
        return asked

    async def come(self) -> AsyncIterator[dict[str, Any]]:
        while (one := await self.events.get()) is not None:
            if isinstance(one, Exception):
                raise one
            yield one


@asynccontextmanager
async def quiet() -> AsyncIterator[Quiet]:
    clock, progress = ManualClock(), ["waiting"]
    silence = Silence(lambda: progress[0], 5.0, 15.0, lambda: clock.now, clock.sleep)

    async def handler(http: web.Request) -> web.StreamResponse:
        return await respond(http, stream.come(), {"x-own": "1"}, silence)

    app = web.Application(middlewares=[error_responses])
    app.router.add_get("/", handler)
    async with TestClient(TestServer(app)) as client:
        stream = Quiet(clock, client, progress)
        yield stream


async def read(response: Any, text: str) -> str:
    """What comes next, which must be `text`."""
    found = await asyncio.wait_for(response.content.readexactly(len(text)), 5.0)
    assert found.decode() == text
    return str(found)


async def test_a_silent_stream_sends_its_headers_and_how_far_it_is() -> None:
    """After 5 seconds, and then every 15, until there is an event; comments come between whole events."""
    async with quiet() as stream:
        asked = await stream.ask()
        await stream.clock.pass_to(4.9)
        assert not asked.done()
        stream.progress[0] = "prompt 1024/6521"
        await stream.clock.pass_to(5.0)
        response = await asyncio.wait_for(asked, 5.0)
        assert (response.status, response.headers["x-own"]) == (200, "1")
        await read(response, ": prompt 1024/6521\n\n")
        await stream.clock.pass_to(19.9)
        stream.progress[0] = "prompt 6144/6521"
        await stream.clock.pass_to(20.0)
        await read(response, ": prompt 6144/6521\n\n")
        await stream.clock.pass_to(30.0)
        stream.events.put_nowait({"a": 1})
        await read(response, 'data: {"a":1}\n\n')
        stream.progress[0] = "waiting"
        await stream.clock.pass_to(44.9)
        await stream.clock.pass_to(45.0)
        await read(response, ": waiting\n\n")
        stream.events.put_nowait(None)
        await read(response, "data: [DONE]\n\n")
        assert await response.content.read() == b""


async def test_a_stream_that_is_not_silent_has_no_comments() -> None:
    async with quiet() as stream:
        asked = await stream.ask()
        for second in range(40):
            await stream.clock.pass_to(float(second))
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
        asked = await stream.ask()
        await stream.clock.pass_to(5.0 if late else 4.9)
        stream.events.put_nowait(error)
        response = await asyncio.wait_for(asked, 5.0)
        text = await response.text()
    assert response.status == (200 if late else status)
    assert words in text
    assert "secret" not in text
    if late:
        assert text.startswith(": waiting\n\ndata: {")
        assert text.endswith("}\n\ndata: [DONE]\n\n")


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
    app = make_app(engine, tokenizer, Metrics())
    with bounds(quiet_seconds=0.001, comment_seconds=0.001):
        async with TestClient(TestServer(app)) as client, client.post(path, json=ROUTES[path]) as response:
            text = await response.text()
    comments = [line for line in text.split("\n") if line.startswith(":")]
    assert set(comments) == {words}
    assert text.startswith(words)
    assert '"error":{' not in text
