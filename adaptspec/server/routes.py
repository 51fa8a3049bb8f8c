"""The route table and `/openapi.json`, which describes it from the models that read requests and write answers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from adaptspec import __version__
from adaptspec.server.api.fields import TOKEN_ID, Json
from adaptspec.server.auth import ADMIN, OPEN
from adaptspec.server.errors import Error, Handler
from adaptspec.server.generation import GENERATION

KEYED = web.AppKey("keyed", bool)  # whether users need an API key
_INTERNAL = "/live/"  # routes of the page, whose answers may change at any time
_TEMPLATE = "#/components/schemas/{model}"
_SCHEMES: Mapping[str, Json] = {
    "api_key": {"type": "http", "scheme": "bearer", "description": "One of the API keys of the server"},
    "admin_key": {"type": "http", "scheme": "bearer", "description": "The admin key of the server"},
}
# What a request can come to besides its answer; every one of them has an error object.
_REFUSALS: Mapping[int, str] = {
    400: "The request cannot be served; `param` names the field at fault",
    401: "The key is missing or wrong",
    403: "The Host header names a host that is not allowed",
    404: "No model, policy or route has this name",
    408: "The body did not arrive in time",
    409: "The policy is in use, or the server is stopping",
    413: "The body is too large",
    415: "The body is compressed, or not declared to be the kind that is wanted",
    429: "Too many requests or live-feed clients; try again later",
    500: "The server failed on this request",
    503: "The server is shutting down, or its engine has stopped",
}
_RETRY: Json = {
    "Retry-After": {
        "description": "Seconds after which to try again, where that may help",
        "schema": {"type": "integer", "minimum": 0},
    }
}
# Headers of refusals.
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


@dataclass(frozen=True)
class Operation:
    """One route with one method; decorates its handler, whose docstring is the summary, and below it the description.

    `answer` None: its answer is not JSON. Refusals that follow from the kind of body, and those that any route may
    have, are not repeated here.
    """

    method: str
    path: str  # as aiohttp has it
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    policy: bool = False  # its body is a policy, as YAML
    dry_run: bool = False  # it has this query parameter
    streams: bool = False  # it answers events: where it has an `answer` as well, only if asked to
    plain: tuple[str, ...] = ()  # media types of an answer that is no JSON
    also: tuple[int, ...] = ()  # other statuses it has with its usual answer
    refused: tuple[int, ...] = ()  # statuses of its own with an error object
    cached: bool = False  # 304 where the client has the answer already
    handler: Handler | None = None

    def __call__(self, handler: Handler) -> Operation:
        return replace(self, handler=handler)

    @property
    def documented_path(self) -> str:
        """The path without the patterns of its parameters."""
        return re.sub(r"{(\w+):[^{}]*}", r"{\1}", self.path)

    @property
    def words(self) -> tuple[str, str]:
        """The summary, and the description or nothing."""
        summary, _, more = (inspect.getdoc(self.handler) or "").partition("\n\n")
        return summary.removesuffix("."), " ".join(more.split())


OPERATIONS = web.AppKey("served_operations", list[Operation])


def add_operations(app: web.Application, operations: Iterable[Operation]) -> None:
    """Serve them, and describe them in `openapi.json`."""
    served = app.setdefault(OPERATIONS, [])
    for operation in operations:
        assert operation.handler is not None
        app.add_routes([web.route(operation.method.upper(), operation.path, operation.handler)])
        served.append(operation)


class OpenApi(BaseModel):
    """An OpenAPI description."""

    openapi: str
    info: Json
    paths: Json


@Operation("get", "/openapi.json", answer=OpenApi)
async def openapi(http: web.Request) -> web.Response:
    """This description."""  # noqa: D404
    served, target = http.app[OPERATIONS], http.app[GENERATION].engine.target
    return web.json_response(describe(served, keyed=http.app[KEYED], vocab_size=target.vocab_size))


def describe(served: Iterable[Operation], *, keyed: bool = False, vocab_size: int = 2**31) -> Json:
    """The description of a server with these routes, whose users need an API key if it is `keyed`."""
    served = [operation for operation in served if not operation.path.startswith(_INTERNAL)]
    models = {Error: None} | {model: None for one in served for model in (one.body, one.answer) if model is not None}
    references, shared = models_json_schema([(model, "validation") for model in models], ref_template=_TEMPLATE)
    _bound_tokens(shared, vocab_size)
    named = {model: reference for (model, _), reference in references.items()}
    paths: dict[str, Json] = {}
    for operation in served:
        paths.setdefault(operation.documented_path, {})[operation.method] = _written(operation, named, keyed=keyed)
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


def _written(operation: Operation, named: Mapping[Any, Json], *, keyed: bool) -> Json:
    path, (summary, more) = operation.documented_path, operation.words
    # The key that it needs, as `auth` has it.
    scheme = "admin_key" if path.startswith(ADMIN) else "api_key" if keyed and path not in OPEN else None
    name = re.sub(r"\W+", "_", path).strip("_") or "root"
    written: Json = {"summary": summary, "operationId": f"{operation.method}_{name}"}
    if more:
        written["description"] = more
    text = {"type": "string", "minLength": 1}
    parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": text} for name in re.findall(r"{(\w+)}", path)
    ]
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


def _responses(operation: Operation, named: Mapping[Any, Json], *, keyed: bool) -> Json:
    content: Json = {kind: {"schema": {"type": "string"}} for kind in operation.plain}
    if operation.answer is not None:
        content["application/json"] = {"schema": named[operation.answer]}
    if operation.streams:
        content["text/event-stream"] = {}
    usual = {"description": operation.words[0], "content": content}
    responses: Json = {"200": usual} | {str(code): usual for code in operation.also}
    if operation.cached:
        responses["304"] = {"description": "The client has it already: If-None-Match names it"}
    refusal = {"application/json": {"schema": named[Error]}}
    found = {*_ANYWHERE, *operation.refused, *((401,) if keyed else ())}
    found.update(_OF_JSON if operation.body is not None else _OF_POLICY if operation.policy else ())
    for code in sorted(found):
        refused: Json = {"description": _REFUSALS[code], "content": refusal}
        if code in _HEADERS:
            refused["headers"] = _HEADERS[code]
        responses.setdefault(str(code), refused)
    return responses
