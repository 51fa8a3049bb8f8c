"""Which requests are taken, what they become for the engine, and that they end together."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.errors import EngineError, OverloadedError, PromptTooLongError, RequestError
from adaptspec.models.grammars import Grammars
from adaptspec.request import MAX_SEED, Request, SamplingParams
from adaptspec.results import Delta, FinishReason
from adaptspec.server.api.chat import ChatRequest, conversation
from adaptspec.server.generation import Generation, seed_of_choice
from adaptspec.server.prompts import Prompts
from tests.server.bounds import bounds


@pytest.fixture
def generation(engine: Any, tokenizer: Any) -> Generation:
    return Generation(engine, Prompts(tokenizer, engine.target.context))


def chatting(tokens: int, **fields: Any) -> ChatRequest:
    """A chat whose prompt has so many tokens: three are the template's."""
    return ChatRequest.model_validate({"messages": [{"role": "user", "content": "x" * (tokens - 3)}], **fields})


async def requests_of(generation: Generation, body: ChatRequest) -> list[Request]:
    return (await conversation(generation, "id", body)).requests


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_an_answer_that_is_asked_for_must_fit(generation: Generation, field: str) -> None:
    """Clipped silently it would look like the model's own end; the largest that fits is told, and is taken."""
    (request,) = await requests_of(generation, chatting(200, **{field: 56}))
    assert (len(request.prompt), request.sampling.max_tokens) == (200, 56)
    with pytest.raises(
        PromptTooLongError,
        match=f"257 tokens .200 in the messages, 57 in the completion.: let {field} be at most 56",
    ) as refused:
        await requests_of(generation, chatting(200, **{field: 57}))
    assert refused.value.param == field
    (request,) = await requests_of(generation, chatting(200, **{field: None}))
    assert request.sampling.max_tokens == 56


async def test_a_grammar_is_compiled_off_the_event_loop(generation: Generation, engine: Any) -> None:
    """A schema may have megabytes; streams go on meanwhile. Without one, nothing is asked for."""
    threads: list[threading.Thread] = []
    compiled = engine.compile_grammar

    def noting(*of: Any) -> Any:
        threads.append(threading.current_thread())
        return compiled(*of)

    engine.compile_grammar = noting
    talk: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
    for more in ({}, {"tools": []}, {"response_format": {"type": "text"}}):
        (request,) = await requests_of(generation, ChatRequest.model_validate(talk | more))
        assert request.sampling.grammar is None
    assert not threads
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    tool = {"type": "function", "function": {"name": "f"}}
    for more in ({"response_format": wanted}, {"response_format": {"type": "json_object"}}, {"tools": [tool]}):
        (request,) = await requests_of(generation, ChatRequest.model_validate(talk | more))
        assert request.sampling.grammar == engine.grammars[-1]
    assert len(engine.grammars) == len(threads) == 3
    assert threading.current_thread() not in threads


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"guided_choice": ["a", "b"]}, "guided_choice"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ],
)
async def test_a_grammar_that_takes_too_long_is_refused_and_holds_nobody_up(
    engine: Any, generation: Generation, asked: dict[str, Any], param: str
) -> None:
    """A compiler that never comes back: the request ends, and the next one's grammar is compiled."""
    forever = threading.Event()
    body = ChatRequest.model_validate({"messages": [{"role": "user", "content": "x"}]} | asked)
    compiled = engine.compile_grammar
    try:
        engine.compile_grammar = lambda *of: forever.wait()
        with bounds(grammar_seconds=0.1), pytest.raises(RequestError, match="seconds to compile") as refused:
            await requests_of(generation, body)
        assert refused.value.param == param
        assert str(refused.value).startswith(f"{param} ")
        engine.compile_grammar = compiled
        with bounds(grammar_seconds=60.0):
            await requests_of(generation, body)
        assert len(engine.grammars) == 1
    finally:
        forever.set()


async def test_requests_beyond_what_grammars_may_take_are_refused_until_others_end(
    engine: Any, generation: Generation, tokenizer: Any
) -> None:
    """Each has a schema of its own, and keeps it compiled while it waits."""

    def body(number: int) -> ChatRequest:
        wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": f"{number:03}"}}}
        return ChatRequest.model_validate({"messages": [{"role": "user", "content": "x"}], "response_format": wanted})

    engine.compile_grammar = Grammars(tokenizer, 260, (1,)).compile
    (first,) = await requests_of(generation, body(0))
    assert first.sampling.grammar is not None
    most = 5 * first.sampling.grammar.compiled.num_bytes
    del first
    with bounds(grammar_bytes=most):
        waiting = [await requests_of(generation, body(number)) for number in range(5)]
        for number in range(5, 50):
            with pytest.raises(OverloadedError, match="compiled grammars"):
                await requests_of(generation, body(number))
        waiting.pop(0)
        waiting.append(await requests_of(generation, body(5)))
        with pytest.raises(OverloadedError):
            await requests_of(generation, body(6))


@given(seed=st.integers(-MAX_SEED, MAX_SEED))
def test_every_choice_has_a_seed_of_its_own(seed: int) -> None:
    """All valid, all different, the first the request's own."""
    seeds = [seed_of_choice(seed, choice) for choice in range(128)]
    assert seeds[0] == seed
    assert len(set(seeds)) == 128
    assert all(SamplingParams(seed=one).seed == one for one in seeds)


async def until(condition: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), 5.0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", [1, 3])
async def test_a_client_that_disconnects_aborts_its_requests(
    client: Any, engine: Any, stream: bool, prompts: int
) -> None:
    engine.pause = 0.02
    body = json.dumps({"prompt": ["hi"] * prompts, "max_tokens": 200, "stream": stream}).encode()
    reader, writer = await asyncio.open_connection(client.server.host, client.server.port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(head.encode() + b"\r\n\r\n" + body)
    await until(lambda: engine.running == prompts)
    if stream:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    assert engine.aborted == []
    writer.close()
    await writer.wait_closed()
    await until(lambda: len(engine.aborted) == prompts)
    assert engine.running == 0


def requests(count: int) -> list[Request]:
    return [Request(str(index), (5,), SamplingParams(max_tokens=50)) for index in range(count)]


def serving(engine: Any) -> Generation:
    """What runs requests, and needs no prompts for it."""
    return Generation(engine, cast("Prompts", None))


async def test_one_prompt_that_fails_aborts_the_others(engine: Any) -> None:
    engine.pause, whole = 0.01, engine.stream

    async def failing(request: Request) -> AsyncIterator[Delta]:
        if request.id == "0":
            await asyncio.sleep(0.02)
            raise EngineError("a fuse has blown")
        async for delta in whole(request):
            yield delta

    engine.stream = failing
    with pytest.raises(EngineError):
        await serving(engine).complete(requests(3))
    with pytest.raises(EngineError):
        async for _ in serving(engine).stream(requests(3)):
            pass
    assert engine.running == 0


@pytest.mark.parametrize(
    ("reason", "kind", "advice"),
    [
        (
            "its grammar could not be followed: Current row has 501 items; max is 500;",
            RequestError,
            "change the grammar",
        ),
        ("its grammar could not be followed: it leaves no token to go on with", RequestError, "change the grammar"),
        ("its grammar could not be followed: the output left its grammar at token 3", EngineError, "send it again"),
        ("its grammar", EngineError, "send it again"),
        (None, EngineError, "send it again"),
    ],
)
async def test_a_grammar_that_cannot_be_followed_is_not_worth_another_try(
    engine: Any, reason: str | None, kind: type[Exception], advice: str
) -> None:
    """Sent again it takes as long, and ends the same; what the engine got wrong may end otherwise."""
    whole = engine.stream

    async def failing(request: Request) -> AsyncIterator[Delta]:
        async for delta in whole(request):
            done = delta.completion
            failed = done and replace(done, finish=FinishReason.ERROR, error=reason)
            yield replace(delta, completion=failed)

    engine.stream = failing
    with pytest.raises(kind, match=advice) as refused:
        await serving(engine).complete(requests(1))
    assert (reason or "") in str(refused.value)


async def test_closing_early_aborts_what_still_runs(engine: Any) -> None:
    engine.pause = 0.001
    stream = serving(engine).stream(requests(3))
    assert (await anext(stream))[1].text
    await stream.aclose()
    assert sorted(engine.aborted) == ["0", "1", "2"]
