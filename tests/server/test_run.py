"""Serving until a signal: where it listens, and what happens to requests in flight and to those that come late."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from typing import Any

import aiohttp
import pytest

from adaptspec.errors import ConfigError
from adaptspec.server.run import SWITCH_SECONDS, serve


async def start(app: Any, **options: Any) -> tuple[str, asyncio.Task[None]]:
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(app, port=0, on_listening=address.set_result, **options))
    await asyncio.wait([address, task], timeout=5.0, return_when=asyncio.FIRST_COMPLETED)
    return address.result(), task


def post(session: aiohttp.ClientSession, url: str, tokens: int) -> asyncio.Task[tuple[int, Any]]:
    async def send() -> tuple[int, Any]:
        async with session.post(f"{url}/v1/completions", json={"prompt": "x", "max_tokens": tokens}) as response:
            return response.status, await response.json()

    return asyncio.create_task(send())


async def busy(engine: Any) -> None:
    async def poll() -> None:
        while not engine.running:
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), 5.0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_requests_in_flight_finish(app: Any, engine: Any, number: signal.Signals) -> None:
    engine.pause = 0.01
    url, server = await start(app)
    assert url.startswith("http://127.0.0.1:")
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{url}/health") as response:
            assert response.status == 200
        answer = post(session, url, 20)
        await busy(engine)
        os.kill(os.getpid(), number)
        status, body = await asyncio.wait_for(answer, 5.0)
        await asyncio.wait_for(server, 5.0)
    assert (status, len(body["choices"][0]["text"])) == (200, 20)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*url.removeprefix("http://").split(":"))


async def test_while_draining_new_requests_are_sent_elsewhere(app: Any, engine: Any) -> None:
    engine.pause = 0.01
    url, server = await start(app)
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{url}/health") as kept:  # opens the connection that is used again below
            await kept.read()
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        answer = post(session, url, 30)
        await busy(engine)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.02)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        writer.write(b'Content-Length: 15\r\n\r\n{"prompt": "x"}')
        reply = await reader.read(2000)
        assert reply.startswith(b"HTTP/1.1 503")
        assert b"Retry-After" in reply
        assert b'"draining"' in reply
        writer.close()
        assert (await answer)[0] == 200
        await server


@pytest.mark.parametrize("impatient", [False, True])
async def test_the_deadline_and_a_second_signal_end_what_is_left(app: Any, engine: Any, impatient: bool) -> None:
    engine.pause = 0.05
    url, server = await start(app, drain_seconds=60.0 if impatient else 0.1)
    async with aiohttp.ClientSession() as session:
        answer = post(session, url, 200)
        await busy(engine)
        os.kill(os.getpid(), signal.SIGTERM)
        if impatient:
            await asyncio.sleep(0.02)
            os.kill(os.getpid(), signal.SIGTERM)
        status, body = await asyncio.wait_for(answer, 5.0)
        await asyncio.wait_for(server, 5.0)
    assert (status, body["error"]["code"]) == (503, "draining")


async def test_a_port_in_use_is_a_setting_to_change(app: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="choose another"):
            await serve(app, port=taken.getsockname()[1], on_listening=print)


async def test_no_thread_keeps_the_interpreter_for_long_while_it_serves(app: Any) -> None:
    """The engine would wait for it hundreds of times in a round, 5 ms each, beside one talk of 4,000 messages."""
    usual = sys.getswitchinterval()
    _, server = await start(app)
    assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(server, 5.0)
    assert sys.getswitchinterval() == usual
