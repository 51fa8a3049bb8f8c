"""Streams of events, at a constant rate where that is wanted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.server.application import make_app
from adaptspec.server.sse import Padding, filler, sending
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
