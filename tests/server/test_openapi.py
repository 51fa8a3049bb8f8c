"""`openapi.json`: every route is in it, its schemas say what the server takes, and answers have the shape it claims."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from pydantic import BaseModel

from adaptspec.server import answers
from adaptspec.server.application import make_app
from adaptspec.server.openapi import OPERATIONS, describe
from adaptspec.telemetry.metrics import Metrics
from tests.server.test_live_answers import TOOL, ask, live
from tests.server.test_wire import CASES, GOOD

__all__ = ["live"]  # the fixture

HELLO = [{"role": "user", "content": "x"}]


def test_every_route_is_described_and_nothing_else(engine: Any, tokenizer: Any) -> None:
    """A new route needs an entry."""
    desk: Any = object()
    app = make_app(engine, tokenizer, Metrics(), policies=desk, admin_key="k")
    served = {
        (route.resource.canonical, route.method.lower())
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert served == set(OPERATIONS)
    assert "/admin/policies" not in describe({"/health"})["paths"]


async def test_it_is_served(client: Any) -> None:
    """And says which version it is of."""
    async with client.get("/openapi.json") as response:
        body = await response.json()
    assert body["openapi"] == "3.1.0"
    assert isinstance(client.app, web.Application)
    assert "/admin/policies" not in body["paths"]
    fields = body["components"]["schemas"]["ChatBody"]["properties"]
    assert {"messages", "tools", "response_format", "prediction", "adaptspec", "store"} <= fields.keys()
    assert fields["store"] == {"enum": [False, None]}


def test_no_field_is_refused_by_name_that_the_schema_offers() -> None:
    """Unknown fields are refused; so the schema must not have them."""
    described = describe({path for path, _ in OPERATIONS})["components"]["schemas"]
    bodies = {"/v1/completions": "CompletionBody", "/v1/chat/completions": "ChatBody"}
    for path, fields, _ in CASES:
        for name in fields.keys() - GOOD[path].keys():
            refused = name in ("frobnicate", "temprature")
            assert not (refused and name in described[bodies[path]]["properties"])
        assert described[bodies[path]]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("path", "body", "shape"),
    [
        ("/v1/completions", {"prompt": "x", "max_tokens": 3, "echo": True, "logprobs": 2}, answers.Completion),
        ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 3}, answers.ChatCompletion),
        (
            "/v1/chat/completions",
            {"messages": HELLO, "max_tokens": 3, "logprobs": True, "top_logprobs": 1, "n": 2},
            answers.ChatCompletion,
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
            answers.ChatCompletion,
        ),
        ("/v1/responses", {"input": "x", "max_output_tokens": 3}, answers.Response),
        ("/tokenize", {"prompt": "x"}, answers.Tokens),
        ("/detokenize", {"tokens": [50]}, answers.Text),
    ],
)
async def test_answers_are_as_described(live: Any, path: str, body: dict[str, Any], shape: type[BaseModel]) -> None:
    """Field by field; what looks is checked by its own tests and by schemathesis."""
    shape.model_validate(await ask(live, path, **body))
