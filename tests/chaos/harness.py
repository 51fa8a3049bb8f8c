"""A whole server in this process, on a thread of its own: real sockets, the bundled pair, and its insides in reach."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.build import Built
from adaptspec.engine.policy_manager import PolicyManager
from adaptspec.engine.watchdog import Watchdog
from adaptspec.models.runner import Runner
from adaptspec.server import limits
from adaptspec.server.app import make_app
from adaptspec.server.auth import Access
from adaptspec.server.listener import Listener
from adaptspec.telemetry.metrics import Metrics
from tests.server.bounds import bounds

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ADMIN = "admin"
CANARY = {"prompt": "Once upon a time there was a fox", "max_tokens": 24, "temperature": 0}


@dataclass(frozen=True)
class Footprint:
    """What must be as before when all is over."""

    rows: int
    blocks: tuple[float, ...]
    tasks: int
    descriptors: int
    threads: int


@dataclass
class Answer:
    """What came back: 0 where the server closed without a word."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """The text of the first choice."""
        choice = self.body["choices"][0]
        return str(choice["text"] if "text" in choice else choice["message"]["content"])


class Server:
    """The server while it runs; made by `running`."""

    def __init__(self, built: Built, max_waiting: int) -> None:
        self.built = built
        self.core = built.core
        self.engine = AsyncEngine(built.core, "bundled", max_waiting)
        self.policies = PolicyManager(self.engine, built.core, built.costs, built.specs, built.files)
        self.loop = asyncio.new_event_loop()
        self.port = 0
        self._listening = threading.Event()
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="chaos-server")

    @property
    def runners(self) -> list[Runner]:
        """Target and draft."""
        drafts = [drafter.runner for drafter in self.built.drafters if isinstance(drafter, DraftModelDrafter)]
        return [self.built.target, *drafts]

    def start(self) -> None:
        """Listen."""
        self._thread.start()
        assert self._listening.wait(20.0)

    def stop(self) -> None:
        """Drain nothing, end everything."""
        assert self._stop is not None
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20.0)
        assert not self._thread.is_alive()
        self.loop.close()

    def ask(
        self, path: str, body: Any = None, *, method: str = "POST", timeout: float = 60.0, **headers: str
    ) -> Answer:
        """One request on a connection of its own. `body` is sent as JSON, or as it is if it is bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        began = time.monotonic()
        try:
            connection.request(method, path, data, {"Content-Type": "application/json", **headers})
            response = connection.getresponse()
            raw = response.read()
        finally:
            connection.close()
        kind = response.headers.get_content_type()
        parsed = json.loads(raw) if kind == "application/json" and raw else raw.decode()
        return Answer(response.status, parsed, dict(response.headers), time.monotonic() - began)

    def canary(self) -> str:
        """The text that must never change."""
        answer = self.ask(COMPLETIONS, CANARY)
        assert answer.status == 200, answer
        return answer.text

    def connect(self, head_and_body: bytes) -> socket.socket:
        """A connection with some bytes sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=20.0)
        connection.sendall(head_and_body)
        return connection

    def footprint(self) -> Footprint:
        """Rows, blocks, tasks, descriptors and threads now, without cached prompts."""
        self.engine.call(self.core.scheduler.prefixes.clear).result(10.0)
        gc.collect()
        tasks = asyncio.run_coroutine_threadsafe(_count_tasks(), self.loop).result(10.0)
        stats = self.engine.stats()
        return Footprint(
            rows=stats.running + stats.waiting,
            blocks=tuple(runner.free_memory for runner in self.runners),
            tasks=tasks,
            descriptors=len(os.listdir("/proc/self/fd")),
            # asyncio's own pool grows to its size and stays.
            threads=sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate()),
        )

    def baseline(self) -> Footprint:
        """The footprint once nothing of what was asked before is left."""
        before = self.footprint()
        while True:
            time.sleep(0.2)
            if (now := self.footprint()) == before:
                return now
            before = now

    def settled(self, before: Footprint, seconds: float = 10.0) -> Footprint:
        """The footprint, as soon as it is that of `before`, or after so long."""
        deadline = time.monotonic() + seconds
        while (now := self.footprint()) != before and time.monotonic() < deadline:
            time.sleep(0.05)
        return now

    def idle_within(self, seconds: float) -> float:
        """Seconds until no request is held any more. Fails after `seconds`."""
        began = time.monotonic()
        while (held := self.engine.stats()).running + held.waiting or not self.core.idle:
            assert time.monotonic() - began < seconds, f"after {seconds} s {held} are still held"
            time.sleep(0.002)
        return time.monotonic() - began

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._serve())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())

    async def _serve(self) -> None:
        access = Access(admin_key=ADMIN)
        app = make_app(self.engine, self.built.tokenizer, Metrics(), access=access, policies=self.policies)
        self._stop = asyncio.Event()
        dog = asyncio.create_task(Watchdog(self.engine, limits.HANG_SECONDS).run())
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        await Listener(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        self._listening.set()
        await self._stop.wait()
        await runner.cleanup()
        dog.cancel()
        await asyncio.to_thread(self.engine.close)


@contextmanager
def running(built: Built, *, max_waiting: int = 1024, **changed: float) -> Iterator[Server]:
    """A server over a core that has no other user meanwhile; `changed` are its bounds (see `bounds`)."""
    with bounds(**changed):
        server = Server(built, max_waiting)
        server.start()
        try:
            server.canary()  # whatever is made once is made now
            yield server
        finally:
            server.stop()


@contextmanager
def replaced(thing: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """While it lasts, a method is what `make` makes of it."""
    usual = getattr(thing, name)
    setattr(thing, name, make(usual))
    try:
        yield
    finally:
        delattr(thing, name)


def post(path: str, body: Any, *, short: int = 0) -> bytes:
    """A POST request; `short` bytes of its end left out."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    whole = f"{head}\r\n\r\n".encode() + data
    return whole[: len(whole) - short]


def vanish(connection: socket.socket, *, politely: bool) -> None:
    """Close it, or reset it as a crashed client's system does."""
    if not politely:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()


def chance(seed: int) -> random.Random:
    """Chance that comes again."""
    return random.Random(seed)


async def _count_tasks() -> int:
    return len(asyncio.all_tasks()) - 1
