"""What systemd is notified of: ready, alive as long as the engine is, stopping; by a socket with a name or without."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adaptspec.server.systemd import send_watchdog_reports
from tests.server.test_run import start


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
