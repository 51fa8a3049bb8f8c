"""Whatever goes wrong, the client gets OpenAI's error object with a fitting status, and other requests go on."""

from __future__ import annotations

from typing import Any

import pytest

from adaptspec.errors import EngineError, OverloadedError, PromptTooLongError, UnknownModelError
from adaptspec.server.http_errors import http_error

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (OverloadedError("the queue is full; wait"), (429, "overloaded")),
        (PromptTooLongError("too long; send less", "prompt"), (400, "context_length_exceeded")),
        (UnknownModelError("no such policy", "adaptspec.policy"), (400, "policy_not_found")),
        (EngineError("it broke; send it again"), (500, "engine_error")),
        (RuntimeError("a secret path"), (500, "internal_error")),
    ],
)
async def test_what_the_engine_refuses(
    client: Any, engine: Any, refusal: Any, expected: tuple[int, str], stream: bool
) -> None:
    engine.refusal = refusal
    async with client.post(CHAT, json={"messages": HELLO, "stream": stream}) as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"]) == expected
        assert ("Retry-After" in response.headers) == (response.status == 429)
        assert (error["message"] == str(refusal)) == (error["code"] != "internal_error"), (
            "unknown errors may hold secrets"
        )
    engine.refusal = None
    async with client.post(CHAT, json={"messages": HELLO, "max_tokens": 2}) as response:
        assert response.status == 200


@pytest.mark.parametrize("path", [CHAT, "/v2/nothing"])
async def test_an_expectation_that_nobody_can_meet(client: Any, engine: Any, path: str) -> None:
    """aiohttp refuses it before any handler or middleware runs; the client gets our shape all the same."""
    async with client.post(path, json={"messages": HELLO}, headers={"Expect": "a-miracle"}) as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"], error["type"]) == (417, "expectation_failed", "invalid_request_error")
        assert "x-request-id" in response.headers
    assert engine.seen == []
    async with client.post(CHAT, json={"messages": HELLO, "max_tokens": 2}, expect100=True) as response:
        assert response.status == 200


def test_the_model_at_fault_is_told_from_the_policy_at_fault() -> None:
    assert http_error(UnknownModelError("", "model")).status == 404
    assert http_error(UnknownModelError("", "adaptspec.policy")).status == 400
