"""Which requests are taken."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from adaptspec.errors import PromptTooLongError, RequestError, UnknownModelError
from adaptspec.server.chat import ChatBody
from adaptspec.server.codec import Codec
from adaptspec.server.completions import CompletionBody
from adaptspec.server.errors import DrainingError, EngineStoppedError
from adaptspec.server.limits import ServerLimits
from adaptspec.server.service import Service


@pytest.fixture
def service(engine: Any, tokenizer: Any) -> Service:
    return Service(engine, Codec(tokenizer, 260))


def test_nothing_is_taken_while_draining_or_dead(service: Service, engine: Any) -> None:
    service.admit()
    engine.alive = False
    with pytest.raises(EngineStoppedError):
        service.admit()
    service.draining = True
    with pytest.raises(DrainingError):
        service.admit()


def test_what_the_engine_cannot_serve_is_refused_before_anything_runs(service: Service, engine: Any) -> None:
    body = CompletionBody.model_validate({"prompt": ["x", "y"], "adaptspec": {"policy": "nope"}})
    with pytest.raises(UnknownModelError, match="goodput or static"):
        service.requests("id", body, [(5,), (6,)])
    assert engine.seen == []


def test_a_prompt_needs_a_token_and_room_for_another(service: Service, engine: Any) -> None:
    body, engine.target = CompletionBody.model_validate({"prompt": "x"}), replace(engine.target, name="served-name")
    service.requests("id", body, [(5,) * 255])
    with pytest.raises(PromptTooLongError, match="256 tokens; served-name holds 256"):
        service.requests("id", body, [(5,), (5,) * 256])
    with pytest.raises(RequestError, match="empty"):
        service.requests("id", body, [(5,), ()])
    chat = ChatBody.model_validate({"messages": [{"role": "user", "content": "x"}]})
    with pytest.raises(PromptTooLongError) as refused:
        service.requests("id", chat, [(5,) * 300])
    assert refused.value.param == "messages"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_an_answer_that_is_asked_for_must_fit(service: Service, field: str) -> None:
    """Clipped silently it would look like the model's own end; the largest that fits is told, and is taken."""

    def asking(tokens: int | None) -> ChatBody:
        return ChatBody.model_validate({"messages": [{"role": "user", "content": "x"}], field: tokens})

    (request,) = service.requests("id", asking(56), [(5,) * 200])
    assert request.sampling.max_tokens == 56
    with pytest.raises(PromptTooLongError, match=f"{field} is 57, .* has 200: ask for at most 56, or leave") as refused:
        service.requests("id", asking(57), [(5,) * 200])
    assert refused.value.param == field
    (request,) = service.requests("id", asking(None), [(5,) * 200])
    assert request.sampling.max_tokens == 56


def test_of_several_prompts_the_one_without_room_counts(service: Service) -> None:
    """And a default that nobody asked for is never refused."""
    body = CompletionBody.model_validate({"prompt": ["x", "y"], "max_tokens": 100})
    service.requests("id", body, [(5,), (5,) * 156])
    with pytest.raises(PromptTooLongError, match="at most 99"):
        service.requests("id", body, [(5,), (5,) * 157])
    service.requests("id", CompletionBody.model_validate({"prompt": "x"}), [(5,) * 255])


def test_more_prompts_than_the_engine_ever_holds_are_refused_for_good(service: Service, engine: Any) -> None:
    engine.capacity = 3
    service.check_size(CompletionBody.model_validate({"prompt": ["x"] * 3}))
    with pytest.raises(RequestError, match="has 4 prompts; this server holds 3"):
        service.check_size(CompletionBody.model_validate({"prompt": ["x"] * 4}))


def test_prompts_get_ids_of_their_own(service: Service) -> None:
    body = CompletionBody.model_validate({"prompt": ["x", "y"]})
    assert [request.id for request in service.requests("id", body, [(5,), (6,)])] == ["id-0", "id-1"]
    assert [request.id for request in service.requests("id", body, [(5,)])] == ["id"]


def test_log_probabilities_of_prompts_are_bounded(engine: Any, tokenizer: Any) -> None:
    """Prompts x tokens x choices x alternatives: each is within its own bound, and together they fill the memory."""
    service = Service(engine, Codec(tokenizer, 260), ServerLimits(prompt_logprobs=600))
    body = CompletionBody.model_validate({"prompt": ["x", "y"], "n": 2, "echo": True, "logprobs": 2})
    service.requests("id", body, [(5,) * 50, (5,) * 50])
    with pytest.raises(RequestError, match="at most 600") as refused:
        service.requests("id", body, [(5,) * 50, (5,) * 51])
    assert refused.value.param == "logprobs"
    service.requests("id", CompletionBody.model_validate({"prompt": "x", "echo": True}), [(5,) * 200])


async def test_a_grammar_is_written_and_compiled_off_the_event_loop(
    service: Service, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schema may have megabytes; streams go on meanwhile. Without one, nothing is asked for."""
    threads: list[threading.Thread] = []
    written = ChatBody.grammar.fget  # type: ignore[attr-defined]

    def noting(body: ChatBody) -> Any:
        threads.append(threading.current_thread())
        return written(body)

    monkeypatch.setattr(ChatBody, "grammar", property(noting))
    talk: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
    for more in ({}, {"tools": []}, {"response_format": {"type": "text"}}):
        await service.check_grammar(ChatBody.model_validate(talk | more))
    assert not threads
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    tool = {"type": "function", "function": {"name": "f"}}
    for more in ({"response_format": wanted}, {"response_format": {"type": "json_object"}}, {"tools": [tool]}):
        body = ChatBody.model_validate(talk | more)
        body.check()
        await service.check_grammar(body)
    assert len(engine.grammars) == 3
    assert len(threads) == 3
    assert threading.current_thread() not in threads


async def test_a_grammar_that_takes_too_long_is_refused_and_holds_nobody_up(
    engine: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that never comes back: the request ends, and the next one's grammar is compiled."""
    forever = threading.Event()
    service = Service(engine, Codec(tokenizer, 260), ServerLimits(grammar_seconds=0.1))
    body = ChatBody.model_validate(
        {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_object"}}
    )
    compiled = engine.check_grammar
    try:
        monkeypatch.setattr(engine, "check_grammar", lambda grammar: forever.wait())
        with pytest.raises(RequestError, match="seconds to compile"):
            await service.check_grammar(body)
        monkeypatch.setattr(engine, "check_grammar", compiled)
        service.limits = replace(service.limits, grammar_seconds=60.0)
        await service.check_grammar(body)
        assert len(engine.grammars) == 1
    finally:
        forever.set()
