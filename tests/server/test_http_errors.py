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


async def test_a_failure_in_the_engine_is_a_500(post: Any, engine: Any) -> None:
    engine.failing_at = 2
    status, body = await post(COMPLETIONS, prompt="x")
    assert status == 500
    assert "a fuse has blown" in body["error"]["message"]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
async def test_an_unknown_model_lists_what_is_served(post: Any, path: str) -> None:
    body = {COMPLETIONS: {"prompt": "x"}, CHAT: {"messages": HELLO}, "/tokenize": {"prompt": "x"}}
    status, answer = await post(path, model="gpt-9", **body.get(path, {"tokens": [5]}))
    error = answer["error"]
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "`tiny`" in error["message"]


LONG = {"role": "user", "content": "x" * 300}


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (CHAT, {"messages": [LONG]}, "your messages resulted in 303 tokens"),
        (COMPLETIONS, {"prompt": "x" * 300}, "your prompt resulted in 300 tokens"),
        (COMPLETIONS, {"prompt": [5] * 256}, "your prompt resulted in 256 tokens"),
        ("/v1/responses", {"input": [LONG]}, "your input resulted in 303 tokens"),
        (
            CHAT,
            {"messages": HELLO, "max_tokens": 300},
            "you requested 308 tokens (8 in the messages, 300 in the compl",
        ),
        (
            COMPLETIONS,
            {"prompt": "x", "max_tokens": 300},
            "you requested 301 tokens (1 in the prompt, 300 in the compl",
        ),
        ("/v1/responses", {"input": "hello", "max_output_tokens": 300}, "you requested 308 tokens"),
        (CHAT, {"messages": [LONG | {"content": "x" * 40_000}]}, "messages has a text of more than"),
        ("/tokenize", {"prompt": "x" * 40_000}, "prompt has a text of more than"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_does_not_fit_is_recognised_by_clients(
    post: Any, path: str, body: dict[str, Any], said: str, stream: bool
) -> None:
    """OpenAI's sentence, by which LiteLLM, CrewAI and others know that a shorter conversation may help."""
    status, answer = await post(path, **body, **({"stream": True} if stream and path != "/tokenize" else {}))
    error = answer["error"]
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert error["message"].startswith(f"This model's maximum context length is 256 tokens. However, {said}")
    assert "context_length_exceeded" in error["message"], "LangChain looks for it there"


async def test_unknown_paths_and_methods(client: Any) -> None:
    async with client.get("/v2/nothing") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (404, "not_found")
    async with client.get(CHAT) as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
        assert (await response.json())["error"]["code"] == "method_not_allowed"


OTHER_ROUTES = {
    "POST /api/chat": "Ollama's, so use POST /v1/chat/completions",
    "POST /api/generate": "Ollama's, so use POST /v1/completions",
    "GET /api/tags": "Ollama's, so use GET /v1/models",
    "POST /api/show": "Ollama's, so use GET /v1/models",
    "GET /api/version": "Ollama's, so use GET /version",
    "DELETE /api/delete": "Ollama's; see /openapi.json",
    "POST /api/embeddings": "computes no embeddings",
    "POST /api/embed": "computes no embeddings",
    "POST /v1/embeddings": "computes no embeddings",
    "POST /v1/messages": "Anthropic's, so use POST /v1/chat/completions",
    "POST /v1/messages/count_tokens": "Anthropic's, so use POST /v1/chat/completions",
    "POST /v1/audio/transcriptions": "text only",
    "POST /v1/images/generations": "text only",
    "POST /v1/moderations": "neither ranks nor classifies",
    "POST /v1/rerank": "neither ranks nor classifies",
    "POST /completion": "llama.cpp's, so use POST /v1/completions",
    "GET /props": "llama.cpp's, so use GET /v1/models",
    "GET /slots": "llama.cpp's, so use GET /metrics",
    "POST /generate": "SGLang's, so use POST /v1/completions",
    "POST /chat/completions": "base URL of the client so that it ends in /v1",
    "POST /v1/v1/chat/completions": "base URL of the client so that it ends in /v1, once",
    "POST /completions": "use /v1/completions, so set the base URL of the client so that it ends in /v1",
    "POST /responses": "use /v1/responses, so set the base URL of the client so that it ends in /v1",
    "GET /models": "use /v1/models, so set the base URL of the client so that it ends in /v1",
    "GET /models/tiny": "base URL of the client so that it ends in /v1",
    "POST /v1/v1/responses": "use /v1/responses, so set the base URL of the client so that it ends in /v1, once",
    "POST /openai/v1/chat/completions": "use /v1/chat/completions, so set the base URL",
    "POST /api/v1/chat/completions/": "use /v1/chat/completions, so set the base URL",
    "POST /v1/chat/completions/": "use /v1/chat/completions, with one slash between its parts and none at its end",
    "POST /v1//completions": "use /v1/completions, with one slash",
    "GET /v1/models/": "use /v1/models, with one slash",
    "POST /tokenize/": "use /tokenize, with one slash",
    "GET /v1/health": "use /health, which is not below /v1",
    "POST /v1/tokenize": "use /tokenize, which is not below /v1",
    "GET /v1/responses/resp_1": "keeps no responses",
    "POST /v1/files/": "no files",
}


@pytest.mark.parametrize(("route", "advice"), OTHER_ROUTES.items())
async def test_routes_of_other_apis_say_what_to_use_instead(client: Any, engine: Any, route: str, advice: str) -> None:
    """One sentence with what this server has, and 404, after which clients do not send the request again."""
    method, path = route.split()
    async with client.request(method, path, json={"messages": HELLO}) as response:
        error = (await response.json())["error"]
    assert (response.status, error["code"], error["type"]) == (404, "not_found", "invalid_request_error")
    assert error["message"].startswith(f"{route} does not exist on this server: ")
    assert advice in error["message"]
    assert "\n" not in error["message"]
    assert not engine.seen


@pytest.mark.parametrize(
    "path", ["/v2/nothing", "/apis", "/v1", "/completionists", "/admin/x", "/v1/chat/completion", "/" + "x" * 5000]
)
async def test_other_unknown_routes_say_where_to_look(client: Any, path: str) -> None:
    async with client.post(path) as response:
        assert response.status == 404
        assert "see /openapi.json" in (await response.json())["error"]["message"]


@pytest.mark.parametrize(
    ("path", "meant"),
    [("/v1/chat/completion", CHAT), ("/v1/complations", COMPLETIONS), ("/v1/response", "/v1/responses")],
)
async def test_a_misspelt_route_gets_a_hint(client: Any, path: str, meant: str) -> None:
    async with client.post(path) as response:
        assert f"(did you mean {meant}?)" in (await response.json())["error"]["message"]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/v1/responses", "/tokenize"])
async def test_a_wrong_method_on_a_known_route_names_the_right_one(client: Any, path: str) -> None:
    async with client.get(path) as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
        assert (await response.json())["error"]["message"] == f"GET {path} is not possible; use POST"


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


async def test_a_body_must_be_declared_as_json(client: Any, engine: Any) -> None:
    async with client.post(COMPLETIONS, data=b'{"prompt": "x"}', headers={"Content-Type": "text/plain"}) as response:
        assert response.status == 415
        assert "Content-Type: application/json" in (await response.json())["error"]["message"]
    assert engine.seen == []


async def test_a_body_that_is_too_large(client: Any) -> None:
    async with client.post(COMPLETIONS, json={"prompt": "x" * 200_000}) as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"]) == (413, "request_too_large")
        assert "150000 bytes" in error["message"]


def test_the_model_at_fault_is_told_from_the_policy_at_fault() -> None:
    assert http_error(UnknownModelError("", "model")).status == 404
    assert http_error(UnknownModelError("", "adaptspec.policy")).status == 400
