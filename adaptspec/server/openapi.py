"""`/openapi.json`: what this server takes and answers, from the very models that read its requests.

Knows routes by their pattern; a test holds them to those of the app, and its claims to a running server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from adaptspec import __version__
from adaptspec.server import answers
from adaptspec.server.chat import ChatBody
from adaptspec.server.completions import CompletionBody
from adaptspec.server.responses import ResponsesBody
from adaptspec.server.tokens import DetokenizeBody, TokenizeBody

Json = dict[str, Any]
_TEMPLATE = "#/components/schemas/{model}"


@dataclass(frozen=True)
class Operation:
    """One route: what it is for, what it takes, what it answers (None: something that is not JSON)."""

    summary: str
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    streams: bool = False
    admin: bool = False
    plain: tuple[str, ...] = ()  # media types of an answer, or of a body that is no JSON
    also: tuple[int, ...] = ()  # other statuses it has with its usual answer


OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("/v1/completions", "post"): Operation("Complete prompts", CompletionBody, answers.Completion, streams=True),
    ("/v1/chat/completions", "post"): Operation(
        "Answer a conversation", ChatBody, answers.ChatCompletion, streams=True
    ),
    ("/v1/responses", "post"): Operation("Make a response", ResponsesBody, answers.Response, streams=True),
    ("/v1/models", "get"): Operation("What is served", answer=answers.ModelList),
    ("/v1/models/{model}", "get"): Operation("The model by its name", answer=answers.Model),
    ("/v1/policies", "get"): Operation("Policies that requests may name", answer=answers.PolicyList),
    ("/tokenize", "post"): Operation("Token ids of a text or a conversation", TokenizeBody, answers.Tokens),
    ("/detokenize", "post"): Operation("The text of token ids", DetokenizeBody, answers.Text),
    ("/health", "get"): Operation("Whether requests are taken", answer=answers.Health, also=(503,)),
    ("/version", "get"): Operation("The version of AdaptSpec", answer=answers.Version),
    ("/metrics", "get"): Operation("Metrics for Prometheus", plain=("text/plain", "application/openmetrics-text")),
    ("/openapi.json", "get"): Operation("This description", answer=answers.OpenApi),
    ("/admin/policies", "get"): Operation("All policies that run", answer=answers.RunningPolicies, admin=True),
    ("/admin/policies", "post"): Operation("Serve a policy, sent as YAML", answer=answers.AppliedPolicy, admin=True),
}
# What a request can come to besides its answer; every one of them has an error object.
_REFUSALS: Mapping[int, str] = {
    400: "The request cannot be served; `param` names the field at fault",
    404: "There is no such model, or path",
    413: "The body is too large",
    415: "The body is not declared to be JSON",
    429: "Too many requests are in flight; try again later",
    500: "The server failed on this request",
    503: "The server is shutting down, or its engine has stopped",
}
_BODILESS = (404, 500, 503)


async def openapi(http: web.Request) -> web.Response:
    """GET /openapi.json."""
    return web.json_response(describe({resource.canonical for resource in http.app.router.resources()}))


def describe(routes: set[str]) -> Json:
    """The description of a server with these routes."""
    served = {place: operation for place, operation in OPERATIONS.items() if place[0] in routes}
    models: list[type[BaseModel]] = [answers.Error]
    for operation in served.values():
        models += [model for model in (operation.body, operation.answer) if model is not None]
    references, shared = models_json_schema(
        [(model, "validation") for model in dict.fromkeys(models)], ref_template=_TEMPLATE
    )
    named = {model: reference for (model, _), reference in references.items()}
    paths: dict[str, Json] = {}
    for (path, method), operation in served.items():
        paths.setdefault(path, {})[method] = _written(path, method, operation, named)
    return {
        "openapi": "3.1.0",
        "info": {"title": "AdaptSpec", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": shared.get("$defs", {}),
            "securitySchemes": {"admin": {"type": "http", "scheme": "bearer"}},
        },
    }


def _written(path: str, method: str, operation: Operation, named: Mapping[Any, Json]) -> Json:
    written: Json = {"summary": operation.summary, "operationId": f"{method}_{path.strip('/').replace('/', '_')}"}
    if "{model}" in path:
        written["parameters"] = [
            {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        ]
    if operation.body is not None:
        written["requestBody"] = {"required": True, "content": {"application/json": {"schema": named[operation.body]}}}
    elif operation.admin and method == "post":
        written["requestBody"] = {"required": True, "content": {"application/yaml": {"schema": {"type": "string"}}}}
    if operation.admin:
        written["security"] = [{"admin": []}]
    written["responses"] = _responses(operation, named, sends=method == "post")
    return written


def _responses(operation: Operation, named: Mapping[Any, Json], *, sends: bool) -> Json:
    content: Json = {kind: {"schema": {"type": "string"}} for kind in operation.plain}
    if operation.answer is not None:
        content["application/json"] = {"schema": named[operation.answer]}
    if operation.streams:
        content["text/event-stream"] = {}
    usual = {"description": operation.summary, "content": content}
    responses: Json = {"200": usual} | {str(status): usual for status in operation.also}
    refusal = {"application/json": {"schema": named[answers.Error]}}
    for status, reason in _REFUSALS.items():
        if sends or status in _BODILESS:
            responses.setdefault(str(status), {"description": reason, "content": refusal})
    if operation.admin:
        responses["401"] = {"description": "The admin key is missing or wrong", "content": refusal}
    return responses
