"""A deterministic engine behind a real HTTP server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from adaptspec.engine.scheduler import PromptProgress
from adaptspec.errors import DrainingError, PromptTooLongError, RequestError, UnknownModelError, context_overflow
from adaptspec.models.runner import ModelInfo
from adaptspec.models.sampling import check_tokens, check_vocabulary
from adaptspec.request import Grammar, Request
from adaptspec.results import Completion, Delta, FinishReason, Piece, SpeculationStats, Timings
from adaptspec.server.app import make_app
from adaptspec.telemetry.metrics import Metrics
from tests.server.bounds import bounds

Client = TestClient[web.Request, web.Application]


class FakeEngine:
    """Answers with letters that depend on the prompt, one token each; keeps what it saw and what was aborted."""

    target = ModelInfo("tiny", "llama", 1000, 260, 256, "f00d", (1,), "float32")
    policies, default_policy, waiting = ("goodput", "static"), "goodput", 0
    preemptions, cache_used, prefix_queried, prefix_hits, prefix_evictions = 0, 0.0, 0, 0, 0

    def __init__(self) -> None:
        self.is_alive, self.drained, self.running, self.capacity = True, False, 0, 1000
        self.draining = False  # it takes no new requests; `drained`: it has aborted what was left
        self.pause = 0.0  # seconds before each token
        self.refusal: Exception | None = None  # raised by `submit`
        self.failing_at: int | None = None  # ends there with FinishReason.ERROR
        self.seen: list[Request] = []
        self.aborted: list[str] = []
        self.grammars: list[Grammar] = []
        self.progress = PromptProgress(0, 0, 0)

    def stats(self) -> FakeEngine:
        return self

    def check(self, request: Request) -> None:
        """The same as `EngineCore.check`, so far as clients can tell."""
        length, context = len(request.prompt), self.target.context
        if not request.prompt:
            raise RequestError("prompt is empty; send at least one token", "prompt")
        if length >= context:
            raise PromptTooLongError(context_overflow(context, f"your prompt resulted in {length} tokens"), "prompt")
        check_tokens("prompt", request.prompt, self.target.vocab_size)
        check_vocabulary(request.sampling, self.target.vocab_size)
        if request.speculation.policy not in (None, *self.policies):
            raise UnknownModelError("no such policy; ask for goodput or static", "adaptspec.policy")

    def prompt_progress(self, request_ids: Collection[str]) -> PromptProgress:
        return self.progress

    def compile_grammar(self, grammar: Grammar, max_bytes: int | None = None) -> Grammar:
        self.grammars.append(grammar)
        return grammar

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        self.seen.append(request)
        self.running, text, ended = self.running + 1, answer(request), False
        try:
            for index, letter in enumerate(text):
                await asyncio.sleep(self.pause)
                if self.drained or index == self.failing_at:
                    text = text[:index]
                    break
                pieces = (Piece(letter, "ngram" if index % 2 else None),) if request.speculation.provenance else None
                yield Delta(request.id, letter, (100,), pieces=pieces)
            ended = True
            yield Delta(request.id, "", (), self._completion(request, text))
        finally:
            self.running -= 1
            self.aborted += [] if ended else [request.id]

    def _completion(self, request: Request, text: str) -> Completion:
        whole = len(text) == request.sampling.max_tokens
        finish = FinishReason.LENGTH if whole else FinishReason.ABORT if self.drained else FinishReason.ERROR
        stats = SpeculationStats("goodput", len(text), 2, 6, 3, (2, 1, 0), (0, 1, 1, 0), nodes=10)
        error, times = "a fuse has blown" if finish is FinishReason.ERROR else None, Timings(0.0, 0.0, 0.1, 0.2)
        return Completion(request.id, text, (100,) * len(text), len(request.prompt), finish, stats, times, error)

    def submit(self, requests: Sequence[Request]) -> Running:
        if self.draining:
            raise DrainingError
        if self.refusal is not None:
            raise self.refusal
        return Running([self.stream(request) for request in requests])

    async def drain(self, seconds: float) -> None:
        self.draining = True
        deadline = asyncio.get_running_loop().time() + seconds
        while self.running and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.005)
        self.drained = True


class Running:
    """Requests that run whether or not anybody reads their pieces, as those of a real engine do."""

    def __init__(self, requests: Sequence[AsyncIterator[Delta]]) -> None:
        self._pieces: asyncio.Queue[Delta | Exception] = asyncio.Queue()
        self._tasks = [asyncio.ensure_future(self._run(pieces)) for pieces in requests]
        self._left = len(requests)

    async def _run(self, pieces: AsyncIterator[Delta]) -> None:
        try:
            async for delta in pieces:
                self._pieces.put_nowait(delta)
        except Exception as error:  # noqa: BLE001 - whoever reads has it
            self._pieces.put_nowait(error)

    def __aiter__(self) -> Running:
        return self

    async def __anext__(self) -> Delta:
        if not self._left:
            raise StopAsyncIteration
        delta = await self._pieces.get()
        if isinstance(delta, Exception):
            raise delta
        self._left -= delta.completion is not None
        return delta

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def answer(request: Request) -> str:
    """What the fake engine says."""
    return "".join(chr(97 + (sum(request.prompt) + index) % 26) for index in range(request.sampling.max_tokens))


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def app(engine: FakeEngine, tokenizer: Any) -> web.Application:
    metrics = Metrics()
    metrics.watch_load(engine.stats)
    with bounds(body_bytes=150_000):
        return make_app(engine, tokenizer, metrics)


@pytest.fixture
async def client(app: web.Application) -> AsyncIterator[Client]:
    async with TestClient(TestServer(app)) as client:
        yield client


Post = Callable[..., Awaitable[tuple[int, Any]]]


@pytest.fixture
def post(client: Client) -> Post:
    """A function `(path, **body) -> (status, answer)`; a streamed answer is the list of its events."""

    async def send(path: str, **body: Any) -> tuple[int, Any]:
        async with client.post(path, json=body) as response:
            if response.content_type == "text/event-stream":
                return response.status, events(await response.text())
            return response.status, await response.json()

    return send


def events(text: str) -> list[Any]:
    """The events of a stream, which must end with [DONE]."""
    assert text.endswith("\n\n")
    blocks = text[:-2].split("\n\n")
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    assert blocks[-1] == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]
