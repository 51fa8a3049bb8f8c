"""`openapi.json`: every route but those of the page is in it, and bodies and answers have the shape it claims."""

from __future__ import annotations

import re
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from adaptspec.server.api.chat import ChatCompletion
from adaptspec.server.api.completions import Completion
from adaptspec.server.api.responses import Response
from adaptspec.server.api.tokenize import Text, Tokens
from adaptspec.server.app import make_app
from adaptspec.server.auth import Access
from adaptspec.server.policies import CheckedPolicy
from adaptspec.server.routes import OPERATIONS, Operation, describe
from adaptspec.telemetry.metrics import Metrics
from tests.server.test_live_answers import TOOL, ask, live
from tests.server.test_policies import FakePolicyManager
from tests.telemetry.rounds import empty_feed

__all__ = ["live"]  # the fixture

HELLO = [{"role": "user", "content": "x"}]


BEARER = {"Authorization": "Bearer k"}


@pytest.fixture
def whole(engine: Any, tokenizer: Any) -> web.Application:
    """An app with all routes there are, and keys for them."""
    facts = {"drafters": ["ngram"], "tasks": ["code"], "rows": 8, "admin": True}
    return make_app(
        engine,
        tokenizer,
        Metrics(),
        access=Access(["k"], "k"),
        policies=FakePolicyManager(),
        live=empty_feed(),
        facts=facts,
    )


def by_path(app: web.Application) -> dict[tuple[str, str], Operation]:
    return {(operation.documented_path, operation.method): operation for operation in app[OPERATIONS]}


def test_every_route_is_described_but_those_of_the_page(whole: web.Application) -> None:
    served = {
        (route.resource.canonical, route.method.lower())
        for route in whole.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert served == set(by_path(whole))
    described = {(path, method) for path, methods in describe(whole[OPERATIONS])["paths"].items() for method in methods}
    assert described == {(path, method) for path, method in served if not path.startswith("/live/")}


async def test_the_keys_it_asks_for_are_those_that_open(whole: web.Application) -> None:
    """A route answers 401 to whoever brings none exactly where it says that it needs one."""
    async with TestClient(TestServer(whole)) as client:
        assert (await client.get("/openapi.json")).status == 401
        described = await (await client.get("/openapi.json", headers=BEARER)).json()
        for path, method in by_path(whole):
            if path.startswith("/live/"):
                continue
            operation = described["paths"][path][method]
            async with client.request(method, re.sub("[{}]", "", path)) as response:
                assert (response.status == 401) is ("security" in operation) is ("401" in operation["responses"])
                if response.status == 401:
                    assert operation["responses"]["401"]["headers"].keys() <= response.headers.keys()
            if "security" in operation:
                ((scheme, _),) = operation["security"][0].items()
                assert (scheme == "admin_key") is path.startswith("/admin/")
                assert scheme in described["components"]["securitySchemes"]
    free = describe(whole[OPERATIONS])["paths"]
    assert {path for path, methods in free.items() for one in methods.values() if "security" in one} == {
        path for path in free if path.startswith("/admin/")
    }


@pytest.mark.parametrize(
    ("path", "body", "shape"),
    [
        ("/v1/completions", {"prompt": "x", "max_tokens": 3, "echo": True, "logprobs": 2}, Completion),
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 3}, ChatCompletion),
        (
            "/v1/chat/completions",
            {"messages": HELLO, "max_tokens": 3, "logprobs": True, "top_logprobs": 1, "n": 2},
            ChatCompletion,
        ),
        (
            "/v1/chat/completions",
            {
                "messages": HELLO,
                "max_tokens": 200,
                "tools": [TOOL],
                "tool_choice": "required",
                "prediction": {"type": "content", "content": "x"},
            },
            ChatCompletion,
        ),
        ("/v1/responses", {"input": "x", "max_output_tokens": 3}, Response),
        ("/tokenize", {"prompt": "x"}, Tokens),
        ("/detokenize", {"tokens": [50]}, Text),
    ],
)
async def test_answers_are_as_described(live: Any, path: str, body: dict[str, Any], shape: type[BaseModel]) -> None:
    """Field by field; what looks is checked by its own tests and by schemathesis."""
    shape.model_validate(await ask(live, path, **body))


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("get", "/v1/policies/{policy}", None),
        ("get", "/ready", None),
        ("get", "/", None),
        ("get", "/page/{name}", None),
        ("get", "/admin/policies", None),
        ("post", "/admin/policies", "new"),
        ("delete", "/admin/policies/{name}", None),
        ("post", "/admin/policies/reload", None),
        ("post", "/admin/drain", None),
        ("delete", "/admin/drain", None),
        ("post", "/admin/state/reset", None),
    ],
)
async def test_what_shows_and_runs_the_server_answers_as_described(
    whole: web.Application, method: str, path: str, body: str | None
) -> None:
    """With the media type, and for JSON field by field."""
    operation = by_path(whole)[path, method]
    place = path.replace("{policy}", "new").replace("{name}", "main.js" if "page" in path else "new")
    async with TestClient(TestServer(whole), headers=BEARER) as client:
        async with client.request(method, place, data=body) as response:
            assert response.status == 200
            if operation.answer is None:
                assert response.content_type in operation.plain
            else:
                operation.answer.model_validate_json(await response.text(), strict=True)
        if operation.cached:
            async with client.get(place, headers={"If-None-Match": response.headers["ETag"]}) as again:
                assert again.status == 304
        if operation.dry_run:
            async with client.request(method, f"{place}?dry_run=true", data=body) as checked:
                CheckedPolicy.model_validate_json(await checked.text(), strict=True)


MESSAGE = {"role": "user", "content": "x"}
OWN = {"provenance": True}
# Bodies that no field condemns alone: path, what is sent, whether it is taken. Token ids go to 259.
BODIES: list[tuple[str, dict[str, Any], bool]] = [
    ("/tokenize", {}, False),
    ("/tokenize", {"prompt": None}, False),
    ("/tokenize", {"prompt": None, "messages": [MESSAGE]}, True),
    ("/tokenize", {"prompt": "x", "messages": [MESSAGE]}, False),
    ("/tokenize", {"prompt": "x", "messages": None}, True),
    ("/detokenize", {"tokens": [259]}, True),
    ("/detokenize", {"tokens": [260]}, False),
    ("/v1/completions", {"prompt": [259]}, True),
    ("/v1/completions", {"prompt": [260]}, False),
    ("/v1/completions", {"prompt": [[3], [260]]}, False),
    ("/v1/completions", {"prompt": "x", "stop_token_ids": [260]}, False),
    ("/v1/completions", {"prompt": "x", "stream_options": {}}, True),
    ("/v1/completions", {"prompt": "x", "stream_options": {"include_usage": None}}, True),
    ("/v1/completions", {"prompt": "x", "stream_options": {"include_usage": True}}, False),
    ("/v1/completions", {"prompt": "x", "stream_options": {"continuous_usage_stats": True}}, False),
    ("/v1/completions", {"prompt": "x", "frobnicate": None, "adaptspec": {"frobnicate": None}}, True),
    ("/v1/completions", {"prompt": "x", "adaptspec": {"frobnicate": 0}}, False),
    ("/v1/completions", {"prompt": "x", "max_tokens": 3.0, "top_k": -1}, True),
    ("/v1/completions", {"prompt": "x", "typical_p": 0.9}, False),
    ("/v1/completions", {"prompt": "x", "stream": True, "stream_options": {}}, True),
    ("/v1/completions", {"prompt": "x", "adaptspec": OWN}, False),
    ("/v1/completions", {"prompt": "x", "adaptspec": {"provenance": False}}, True),
    ("/v1/completions", {"prompt": "x", "adaptspec": OWN, "stream": True}, True),
    ("/v1/chat/completions", {"messages": [MESSAGE], "adaptspec": OWN}, False),
    ("/v1/chat/completions", {"messages": [MESSAGE], "adaptspec": OWN, "stream": True}, True),
    ("/v1/chat/completions", {"messages": [MESSAGE], "adaptspec": OWN, "stream": True, "tools": [TOOL]}, False),
    ("/v1/chat/completions", {"messages": [MESSAGE], "top_logprobs": 1}, False),
    ("/v1/chat/completions", {"messages": [MESSAGE], "top_logprobs": 0}, True),
    ("/v1/chat/completions", {"messages": [MESSAGE], "tools": [{"type": "web_search"}]}, True),
    ("/v1/chat/completions", {"messages": [MESSAGE], "tools": [{"type": "function"}]}, True),
    ("/v1/chat/completions", {"messages": [MESSAGE], "tools": [5]}, False),
    ("/v1/chat/completions", {"messages": [MESSAGE], "tools": [{}], "tool_choice": {"type": "mcp"}}, True),
    ("/v1/chat/completions", {"messages": [MESSAGE], "tools": [TOOL], "tool_choice": 5}, False),
    ("/v1/completions", {"prompt": "x", "max_tokens": -1}, True),
    ("/v1/chat/completions", {"messages": [MESSAGE], "max_completion_tokens": -1}, True),
    ("/v1/chat/completions", {"messages": [MESSAGE], "max_completion_tokens": 0}, False),
    ("/v1/chat/completions", {"messages": [MESSAGE], "tools": [{"function": {"name": "f", "x": 1}}]}, True),
    ("/v1/responses", {"input": [{"type": "reasoning"}, MESSAGE], "tools": [{"type": "mcp"}]}, True),
    ("/v1/responses", {"input": [{"type": "item_reference"}]}, False),
    ("/v1/responses", {"input": [MESSAGE], "previous_response_id": "resp_1"}, False),
    ("/v1/responses", {"input": [MESSAGE], "client_metadata": {"a": 1}, "truncation": "auto"}, True),
    ("/v1/chat/completions", {"messages": [MESSAGE], "top_logprobs": 1, "logprobs": True}, True),
    ("/v1/chat/completions", {"messages": [MESSAGE], "max_tokens": 3, "max_completion_tokens": 3}, False),
    ("/v1/chat/completions", {"messages": [MESSAGE], "max_tokens": None, "max_completion_tokens": 3}, True),
    ("/v1/responses", {"input": "x", "adaptspec": OWN, "stream": True}, False),
    ("/v1/responses", {"input": "x", "adaptspec": {"provenance": None}}, True),
]

THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]}
BODIES += [
    ("/v1/responses", {"input": [MESSAGE, {"role": "user", "content": None}]}, False),
    ("/v1/responses", {"input": [{"role": "developer"}]}, False),
    ("/v1/responses", {"input": [{"role": "system", "content": ""}]}, True),
    ("/v1/responses", {"input": [MESSAGE, {"role": "assistant", "content": None}]}, True),
    ("/v1/responses", {"input": [THOUGHT, MESSAGE]}, True),
]


async def test_the_schema_allows_all_that_the_server_takes(client: Any) -> None:
    """It describes each field, with the token ids there are. Rules between fields are the server's alone."""
    described = await (await client.get("/openapi.json")).json()
    wrong: list[object] = []
    for path, body, taken in BODIES:
        schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        validator = Draft202012Validator(schema | {"components": described["components"]})
        if taken and not validator.is_valid(body):
            wrong.append(("schema", path, body))
        async with client.post(path, json=body) as response:
            if (response.status == 200) is not taken:
                wrong.append(("server", path, body, await response.text()))
    assert not wrong
