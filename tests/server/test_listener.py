"""Serving until a signal: requests in flight, requests that come late, and what systemd is notified of."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from adaptspec.errors import ConfigError
from adaptspec.request import Grammar
from adaptspec.server.app import make_app
from adaptspec.server.auth import Access
from adaptspec.server.generation import GENERATION
from adaptspec.server.listener import SWITCH_SECONDS, send_watchdog_reports, serve_app
from adaptspec.telemetry.metrics import Metrics
from tests.server.test_policies import FakePolicyManager


async def start(app: Any, **options: Any) -> tuple[str, asyncio.Task[None]]:
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve_app(app, port=0, on_listening=address.set_result, **options))
    await asyncio.wait([address, task], timeout=5.0, return_when=asyncio.FIRST_COMPLETED)
    return address.result(), task


def post(session: aiohttp.ClientSession, url: str, tokens: int, **more: Any) -> asyncio.Task[tuple[int, Any]]:
    body = {"prompt": "x", "max_tokens": tokens, **more}

    async def send() -> tuple[int, Any]:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            return response.status, await response.json()

    return asyncio.create_task(send())


async def busy(engine: Any) -> None:
    await until(lambda: engine.running)


async def until(reached: Callable[[], object]) -> None:
    async def poll() -> None:
        while not reached():
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


@pytest.mark.parametrize("others", [False, True])
async def test_a_body_that_still_arrives_at_the_signal_is_sent_elsewhere(
    app: Any, engine: Any, caplog: pytest.LogCaptureFixture, others: bool
) -> None:
    engine.pause = 0.01
    url, server = await start(app)
    async with aiohttp.ClientSession() as session:
        answer = post(session, url, 30) if others else None
        reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        writer.write(b'Content-Length: 15\r\n\r\n{"pro')
        await until(lambda: app[GENERATION].preparing == 1 and engine.running == others)
        os.kill(os.getpid(), signal.SIGTERM)
        reply = await asyncio.wait_for(reader.read(), 5.0)
        assert reply.startswith(b"HTTP/1.1 503")
        assert b'"draining"' in reply
        writer.close()
        assert answer is None or (await answer)[0] == 200
        await asyncio.wait_for(server, 5.0)
    assert not caplog.records


async def test_a_request_that_is_prepared_at_the_signal_is_answered(
    app: Any, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encoding a long prompt and compiling a grammar take seconds, in which the engine has nothing to do."""
    released = threading.Event()

    def compile_grammar(grammar: Grammar, max_bytes: int | None = None) -> Grammar:
        assert released.wait(5.0)
        return grammar

    monkeypatch.setattr(engine, "compile_grammar", compile_grammar)
    url, server = await start(app)
    async with aiohttp.ClientSession() as session:
        answer = post(session, url, 5, response_format={"type": "json_object"})
        await until(lambda: app[GENERATION].preparing == 1)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: app[GENERATION].stopping)
        released.set()
        assert (await asyncio.wait_for(answer, 5.0))[0] == 200
        await asyncio.wait_for(server, 5.0)


async def test_the_administrator_cannot_end_what_a_signal_began(engine: Any, tokenizer: Any) -> None:
    access, headers = Access(admin_key="k"), {"Authorization": "Bearer k"}
    app = make_app(engine, tokenizer, Metrics(), access=access, policies=FakePolicyManager())
    engine.pause = 0.01
    url, server = await start(app)
    async with aiohttp.ClientSession() as kept, aiohttp.ClientSession() as session:
        async with kept.get(f"{url}/health") as response:  # opens the connection that is used again below
            await response.read()
        answer = post(session, url, 30)
        await busy(engine)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: app[GENERATION].stopping)
        async with kept.delete(f"{url}/admin/drain", headers=headers) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (409, "server_stopping")
        assert (await answer)[0] == 200
        await server


@pytest.mark.parametrize("impatient", [False, True])
async def test_the_deadline_and_a_second_signal_end_what_is_left(app: Any, engine: Any, impatient: bool) -> None:
    engine.pause = 0.05
    second_signals: list[bool] = []
    drain_seconds = 60.0 if impatient else 0.1
    url, server = await start(
        app, drain_seconds=drain_seconds, on_second_signal=lambda: second_signals.append(engine.drained)
    )
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
    assert second_signals == ([False] if impatient else []), "it is called before the rest is aborted"


async def test_a_port_in_use_is_a_setting_to_change(app: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="choose another"):
            await serve_app(app, port=taken.getsockname()[1], on_listening=print)


async def test_no_thread_keeps_the_interpreter_for_long_while_it_serves(app: Any) -> None:
    """The engine would wait for it hundreds of times in a round, 5 ms each, while a long conversation is rendered."""
    usual = sys.getswitchinterval()
    _, server = await start(app)
    assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(server, 5.0)
    assert sys.getswitchinterval() == usual


@pytest.fixture(params=["a file", "an abstract socket"])
def received(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """The socket that $NOTIFY_SOCKET names."""
    name = str(tmp_path / "notify") if request.param == "a file" else f"@adaptspec-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name.replace("@", "\0", 1) if name.startswith("@") else name)
        listener.settimeout(5.0)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield listener


async def next_report(received: socket.socket) -> str:
    return (await asyncio.to_thread(received.recv, 1000)).decode()


async def test_a_server_is_ready_once_it_listens_and_stopping_at_a_signal(app: Any, received: socket.socket) -> None:
    url, server = await start(app)
    assert await next_report(received) == "READY=1"
    _, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
    writer.close()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await next_report(received) == "STOPPING=1"
    await asyncio.wait_for(server, 5.0)


async def test_reports_come_twice_in_the_time_of_the_watchdog_as_long_as_the_engine_lives(
    received: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that hangs or has stopped lets systemd restart the server."""
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    lives, slept = iter((True, True, False, True, False)), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    with pytest.raises(RuntimeError, match="StopIteration"):
        await send_watchdog_reports(lambda: next(lives), sleep)
    assert slept == [15.0] * 5
    received.setblocking(False)
    assert [received.recv(1000) for _ in range(3)] == [b"WATCHDOG=1"] * 3
    with pytest.raises(BlockingIOError):
        received.recv(1000)
