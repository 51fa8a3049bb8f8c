"""`/openapi.json`: what this server takes and answers, from the models that read requests and write answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from adaptspec import __version__
from adaptspec.server import admin, live_answers, operations, status, trials
from adaptspec.server.api import tokenize
from adaptspec.server.api.answers import Json
from adaptspec.server.api.chat import ChatBody, ChatCompletion
from adaptspec.server.api.completions import Completion, CompletionBody
from adaptspec.server.api.response_events import Response
from adaptspec.server.api.responses import ResponsesBody
from adaptspec.server.api.wire import TOKEN_ID
from adaptspec.server.auth import ADMIN, OPEN
from adaptspec.server.http_errors import Error
from adaptspec.server.limits import ServerLimits
from adaptspec.server.service import SERVICE

KEYED = web.AppKey("keyed", bool)  # whether users need an API key
_TEMPLATE = "#/components/schemas/{model}"
_SCHEMES: Mapping[str, Json] = {
    "api_key": {"type": "http", "scheme": "bearer", "description": "One of the API keys of the server"},
    "admin_key": {"type": "http", "scheme": "bearer", "description": "The admin key of the server"},
}
# What a request can come to besides its answer; every one of them has an error object.
_REFUSALS: Mapping[int, str] = {
    400: "The request cannot be served; `param` names the field at fault",
    401: "The key is missing or wrong",
    403: "The server was called by a name that is not its own",
    404: "There is nothing of this name",
    408: "The body did not arrive in time",
    409: "It is needed by others",
    413: "The body is too large",
    415: "The body is compressed, or not declared to be the kind that is wanted",
    429: "Too many of these are in flight; try again later",
    500: "The server failed on this request",
    503: "The server is shutting down, or its engine has stopped",
}
_RETRY: Json = {
    "Retry-After": {
        "description": "Seconds after which to try again, where that may help",
        "schema": {"type": "integer", "minimum": 0},
    }
}
# What refusals may say beside their body.
_HEADERS: Mapping[int, Json] = {
    401: {"WWW-Authenticate": {"description": "How to send the key", "schema": {"type": "string"}}},
    429: _RETRY,
    503: _RETRY,
}
_ANYWHERE = (403, 415, 500, 503)
_OF_JSON = (400, 404, 408, 413)  # 404: a body may name the model
_OF_POLICY = (400, 413)
_DRY_RUN: Json = {
    "name": "dry_run",
    "in": "query",
    "description": "Whether to look at the policy only, and not to serve it",
    "schema": {"type": "boolean", "default": False},
}


class OpenApi(BaseModel):
    """An OpenAPI description."""

    openapi: str
    info: Json
    paths: Json


@dataclass(frozen=True)
class Operation:
    """One route with one method.

    `answer` None: it answers something that is not JSON. Refusals that follow from the kind of body, and those that any
    route may have, go without saying.
    """

    summary: str
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    more: str = ""  # what the summary has no room for
    policy: bool = False  # its body is a policy, as YAML
    dry_run: bool = False  # it has this query parameter
    streams: bool = False  # it answers events: where it has an `answer` as well, only if asked to
    plain: tuple[str, ...] = ()  # media types of an answer that is no JSON
    also: tuple[int, ...] = ()  # other statuses it has with its usual answer
    refused: tuple[int, ...] = ()  # statuses of its own with an error object
    cached: bool = False  # 304 for who has the answer already


_EVENTS = (
    "Server-sent events without an end. The first is `snapshot`, the answer of GET /live/snapshot; `update` follows "
    "where something has happened, with `now`, `load`, the `seconds` that differ, requests that `started` and "
    "`finished`, new `rounds` by request, `earnings` and `missed_rounds`; `beat`, with `now`, where nothing has."
)
_DRY_RUN_WORDS = "With dry_run=true it is only looked at. It must be sent under the name that its metadata gives."

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("/v1/completions", "post"): Operation(
        "Complete prompts", CompletionBody, Completion, streams=True, refused=(429,)
    ),
    ("/v1/chat/completions", "post"): Operation(
        "Answer a conversation", ChatBody, ChatCompletion, streams=True, refused=(429,)
    ),
    ("/v1/responses", "post"): Operation("Make a response", ResponsesBody, Response, streams=True, refused=(429,)),
    ("/v1/models", "get"): Operation("What is served", answer=status.ModelList),
    ("/v1/models/{model}", "get"): Operation("The model by its name", answer=status.Model, refused=(404,)),
    ("/v1/policies", "get"): Operation("Policies that requests may name", answer=admin.PolicyList),
    ("/v1/policies/{policy}", "get"): Operation(
        "A policy that requests may name, as YAML too", answer=admin.PolicyText, refused=(404,)
    ),
    ("/tokenize", "post"): Operation("Token ids of a text or a conversation", tokenize.TokenizeBody, tokenize.Tokens),
    ("/detokenize", "post"): Operation("The text of token ids", tokenize.DetokenizeBody, tokenize.Text),
    ("/health", "get"): Operation(
        "Whether the engine lives", answer=status.Health, also=(503,), more="503 when only a restart helps."
    ),
    ("/ready", "get"): Operation(
        "Whether requests are taken", answer=status.Health, also=(503,), more="503 when draining, full or dead."
    ),
    ("/version", "get"): Operation("The version of AdaptSpec", answer=status.Version),
    ("/metrics", "get"): Operation("Metrics for Prometheus", plain=("text/plain", "application/openmetrics-text")),
    ("/openapi.json", "get"): Operation("This description", answer=OpenApi),
    ("/", "get"): Operation("The live page", plain=("text/html",), cached=True),
    ("/dashboard", "get"): Operation("The live page", plain=("text/html",), cached=True),
    ("/page/{name}", "get"): Operation(
        "A file of the live page",
        plain=("text/html", "text/css", "text/javascript", "image/svg+xml"),
        refused=(404,),
        cached=True,
    ),
    ("/live/snapshot", "get"): Operation(
        "What happened lately and happens now", answer=live_answers.LiveSnapshot, more="Never text of a request."
    ),
    ("/live/events", "get"): Operation(
        "The same, and what follows as it happens", streams=True, refused=(429,), more=_EVENTS
    ),
    ("/admin/policies", "get"): Operation("All policies that run", answer=admin.RunningPolicies),
    ("/admin/policies", "post"): Operation(
        "Serve a policy from the next round on",
        answer=admin.AppliedPolicy,
        policy=True,
        more=f"400 beyond {ServerLimits().policies} policies, unless the server was started with another limit.",
    ),
    ("/admin/policies/{name}", "get"): Operation("One policy that runs", answer=admin.RunningPolicy, refused=(404,)),
    ("/admin/policies/{name}", "put"): Operation(
        "Serve a policy under its name", answer=admin.PutPolicy, policy=True, dry_run=True, more=_DRY_RUN_WORDS
    ),
    ("/admin/policies/{name}", "delete"): Operation(
        "Serve a policy no longer",
        answer=admin.DeletedPolicy,
        refused=(404, 409),
        more="Requests that have come to it keep it. 409 for the default, and for one that a shadow watches.",
    ),
    ("/admin/policies/reload", "post"): Operation("Read the files of all policies again", answer=admin.ReloadedFiles),
    ("/admin/policies/validate", "post"): Operation(
        "Look at a policy", answer=trials.Validation, policy=True, more="What is wrong with it is the answer."
    ),
    ("/admin/policies/simulate", "post"): Operation(
        "Replay a policy over the newest requests of the journal",
        answer=trials.Trial,
        policy=True,
        refused=(429,),
        more="400 where the server writes no journal, 429 while another one is replayed.",
    ),
    ("/admin/requests", "get"): Operation(
        "Requests that run, and what was decided for them", answer=operations.DecidedRequests
    ),
    ("/admin/drain", "post"): Operation("Refuse new requests from now on", answer=operations.Draining),
    ("/admin/drain", "delete"): Operation("Take requests again", answer=operations.Draining),
    ("/admin/state/save", "post"): Operation(
        "Write down what was learned",
        answer=operations.SavedState,
        refused=(400,),
        more="400 where the server keeps nothing, or it could not be written.",
    ),
    ("/admin/state/reset", "post"): Operation("Have every policy learn anew", answer=operations.ResetState),
}


async def openapi(http: web.Request) -> web.Response:
    """GET /openapi.json."""
    routes = {resource.canonical for resource in http.app.router.resources()}
    vocabulary = http.app[SERVICE].engine.target.vocab_size
    return web.json_response(describe(routes, keyed=http.app[KEYED], vocab_size=vocabulary))


def describe(routes: set[str], *, keyed: bool = False, vocab_size: int = 2**31) -> Json:
    """The description of a server with these routes, whose users need an API key if it is `keyed`."""
    served = {place: operation for place, operation in OPERATIONS.items() if place[0] in routes}
    models: list[type[BaseModel]] = [Error]
    for operation in served.values():
        models += [model for model in (operation.body, operation.answer) if model is not None]
    references, shared = models_json_schema(
        [(model, "validation") for model in dict.fromkeys(models)], ref_template=_TEMPLATE
    )
    _bound_tokens(shared, vocab_size)
    named = {model: reference for (model, _), reference in references.items()}
    paths: dict[str, Json] = {}
    for (path, method), operation in served.items():
        paths.setdefault(path, {})[method] = _written(path, method, operation, named, _scheme(path, keyed=keyed))
    return {
        "openapi": "3.1.0",
        "info": {"title": "AdaptSpec", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": shared.get("$defs", {}), "securitySchemes": dict(_SCHEMES)},
    }


def _bound_tokens(schema: object, vocab_size: int) -> None:
    """Give numbers that are token ids their maximum, wherever they stand."""
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _bound_tokens(part, vocab_size)
    if isinstance(schema, dict) and schema.get("format") == TOKEN_ID:
        del schema["format"]
        schema["maximum"] = vocab_size - 1


def _scheme(path: str, *, keyed: bool) -> str | None:
    """The key that a path needs, as `auth` has it."""
    if path.startswith(ADMIN):
        return "admin_key"
    return "api_key" if keyed and path not in OPEN else None


def _written(path: str, method: str, operation: Operation, named: Mapping[Any, Json], scheme: str | None) -> Json:
    words = re.sub(r"\W+", "_", path).strip("_") or "root"
    written: Json = {"summary": operation.summary, "operationId": f"{method}_{words}"}
    if operation.more:
        written["description"] = operation.more
    parameters = [_path_parameter(name) for name in re.findall(r"{(\w+)}", path)]
    parameters += [_DRY_RUN] if operation.dry_run else []
    if parameters:
        written["parameters"] = parameters
    if operation.body is not None:
        written["requestBody"] = {"required": True, "content": {"application/json": {"schema": named[operation.body]}}}
    elif operation.policy:
        written["requestBody"] = {"required": True, "content": {"application/yaml": {"schema": {"type": "string"}}}}
    if scheme is not None:
        written["security"] = [{scheme: []}]
    written["responses"] = _responses(operation, named, keyed=scheme is not None)
    return written


def _path_parameter(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _responses(operation: Operation, named: Mapping[Any, Json], *, keyed: bool) -> Json:
    content: Json = {kind: {"schema": {"type": "string"}} for kind in operation.plain}
    if operation.answer is not None:
        content["application/json"] = {"schema": named[operation.answer]}
    if operation.streams:
        content["text/event-stream"] = {}
    usual = {"description": operation.summary, "content": content}
    responses: Json = {"200": usual} | {str(code): usual for code in operation.also}
    if operation.cached:
        responses["304"] = {"description": "The client has it already: If-None-Match names it"}
    refusal = {"application/json": {"schema": named[Error]}}
    for code in sorted(_refusals(operation, keyed=keyed)):
        told: Json = {"description": _REFUSALS[code], "content": refusal}
        if code in _HEADERS:
            told["headers"] = _HEADERS[code]
        responses.setdefault(str(code), told)
    return responses


def _refusals(operation: Operation, *, keyed: bool) -> set[int]:
    found = {*_ANYWHERE, *operation.refused}
    if operation.body is not None:
        found.update(_OF_JSON)
    if operation.policy:
        found.update(_OF_POLICY)
    return found | {401} if keyed else found
