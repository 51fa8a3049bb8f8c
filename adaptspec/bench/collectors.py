"""First tokens beside collectors that are well, dead, slow or refuse spans: what tracing costs users at its worst."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from adaptspec.bench.workloads import Workloads, encode
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.build import Built, assemble, build
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.request import Request, SamplingParams
from adaptspec.telemetry.otlp_export import SpanQueue, TraceLevel, TraceSettings
from adaptspec.telemetry.request_store import RequestStore
from adaptspec.telemetry.tracing import Trace, Tracing

COLLECTORS = ("none", "well", "dead", "slow", "refusing")
_SLOW_SECONDS = 5.0
# Lots leave more often than they usually do: within the block that they come from. What is left is sent behind it.
_PAUSE, _FLUSHING_SECONDS, _SETTLING_SECONDS = 1.0, 1.0, 0.2
# Parts of a run, each with a p99 of its own, and how many requests make one.
_PARTS, _OF_PART = 9, 100


@dataclass(frozen=True)
class Load:
    """Requests beside each collector, in blocks one collector after the other, of so many tokens at most."""

    requests: int = 400
    block: int = 50
    tokens: int = 64


async def run_collectors(workloads: Workloads, load: Load, tick: Callable[[], None]) -> dict[str, Any]:
    """First tokens beside each collector, of prompts in turn, one request at a time.

    Collectors take turns, in an order drawn anew, so that the machine's moods hit all. `tick` is called after each
    block.

    Raises:
        ModelError, ConfigError: the bundled pair cannot be served.
    """
    seconds: dict[str, list[float]] = {name: [] for name in COLLECTORS}
    built = await asyncio.to_thread(build, EngineConfig())
    servers = {name: _Server(name, built) for name in COLLECTORS}
    longest = built.target.info.context - load.tokens
    prompts = [
        encode(built.template, prompt, longest) for turn in zip(*workloads.values(), strict=False) for prompt in turn
    ]
    try:
        for server in servers.values():  # warm
            await server.answer(prompts, load.tokens)
        rng = np.random.default_rng(0)
        for begun in range(0, load.requests, load.block):
            asked = [prompts[n % len(prompts)] for n in range(begun, min(begun + load.block, load.requests))]
            for name in rng.permutation(COLLECTORS).tolist():
                seconds[name] += await servers[name].answer(asked, load.tokens)
                await servers[name].settle()
                tick()
    finally:
        closing = {name: server.close() for name, server in servers.items()}
    return {
        name: {
            "p50_ms": 1e3 * float(np.quantile(times, 0.5)),
            "p99_ms": 1e3 * float(np.quantile(times, 0.99)),
            "p99_over_none": p99_over(times, seconds["none"]),
            "p99_over_well": p99_over(times, seconds["well"]),
            "dropped_spans": servers[name].dropped,
            "closing_seconds": closing[name],
        }
        for name, times in seconds.items()
    }


def p99_over(mine: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """One p99 over another's, part by part of a run: the whole rests on few times, which a noisy machine makes."""
    parts = max(1, min(_PARTS, len(mine) // _OF_PART, len(others) // _OF_PART))
    own, its = (
        np.array([float(np.quantile(part, 0.99)) for part in np.array_split(times, parts)]) for times in (mine, others)
    )
    ratios = own / its
    return {"median": float(np.median(ratios)), "lowest": float(ratios.min()), "highest": float(ratios.max())}


def begun(tracing: Tracing, request: Request) -> Trace:
    """The trace of a request that has just come in."""
    trace = tracing.begin("chat", {})
    trace.asked([request], request.id, ())
    return trace


class _Server:
    """An engine, traced towards one kind of collector; not traced for `none`. All share models, and take turns."""

    def __init__(self, kind: str, built: Built) -> None:
        self._collector = collector(kind)
        url, sinks = self._collector.__enter__(), []
        self._tracing: Tracing | None = None
        if kind != "none":
            settings = TraceSettings(TraceLevel.PHASE, url)
            self._spans = SpanQueue(settings.exporter(), _PAUSE)
            self._tracing = Tracing(RequestStore(), settings, self._spans, "bench")
            self._tracing.store.start(built.core.limits.max_rows, [drafter.name for drafter in built.drafters])
            sinks.append(self._tracing.store)
        core = assemble(
            built.target,
            built.drafters,
            built.tokenizer,
            specs=built.specs,
            costs=built.costs,
            limits=replace(built.core.limits, prefix_cache="off"),  # the other engines write to the same rows
            sinks=sinks,
        )
        self._engine = AsyncEngine(core)

    @property
    def dropped(self) -> int:
        return 0 if self._tracing is None else self._tracing.dropped

    async def answer(self, prompts: Sequence[tuple[int, ...]], tokens: int) -> list[float]:
        """Requests one after the other; seconds to the first token of each."""
        sampling = SamplingParams(max_tokens=tokens, temperature=0.0)
        firsts = []
        for number, prompt in enumerate(prompts):
            request = Request(f"b{time.monotonic_ns()}-{number}", prompt, sampling)
            began, first = time.perf_counter(), 0.0
            trace = None if self._tracing is None else begun(self._tracing, request)
            async for _ in self._engine.stream(request):
                first = first or time.perf_counter() - began
            firsts.append(first)
            if trace is not None:
                trace.end(200, None)
        return firsts

    async def settle(self) -> None:
        """Let it do what is left of a block's work, which is not to fall into another's.

        What a collector does not answer in time goes on beside the others: waiting takes nothing from them.
        """
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.store.settle)
            flushing = asyncio.create_task(asyncio.to_thread(self._spans.force_flush))
            await asyncio.wait([flushing], timeout=_FLUSHING_SECONDS)
        await asyncio.sleep(_SETTLING_SECONDS)

    def close(self) -> float:
        """End everything; the seconds that tracing took to end."""
        self._engine.close()
        began = time.perf_counter()
        if self._tracing is not None:
            self._tracing.store.close()
            self._tracing.close()
        took = time.perf_counter() - began
        self._collector.__exit__(None, None, None)
        return took


@contextmanager
def collector(kind: str) -> Iterator[str]:
    """The URL of a collector that is `well`, `slow`, `refusing`, or not there at all."""
    if kind in ("none", "dead"):
        yield "http://127.0.0.1:9"
        return
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if kind == "slow":
                over.wait(_SLOW_SECONDS)
            self.send_response(400 if kind == "refusing" else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Standard error is for our own words."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        over.set()
        server.shutdown()
        server.server_close()
