"""Middleware of every request: its id, its count by route and status, and the trace of those that run prompts."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable
from typing import Any

from aiohttp import web

from adaptspec.server.errors import Handler
from adaptspec.server.sse import EventStream
from adaptspec.telemetry.tracer import Trace, Tracer

TRACE = web.RequestKey("trace", Trace)
# The operation of each traced route, by the names of OpenTelemetry (`gen_ai.operation.name`).
TRACED_ROUTES = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion", "/v1/responses": "chat"}
CLIENT_CLOSED = 499  # as proxies log it: the client left before there was a status
UNMATCHED = "unmatched"  # one label for all paths and methods without a route: clients must not make new labels
REQUEST_ID = "x-request-id"
MAX_ID_LENGTH = 128
_UNSAFE = re.compile(r"[^A-Za-z0-9._:/+=@-]")


def counting(responded: Callable[[str, int], None]) -> Any:
    """A middleware that reports the route's pattern and the status of every answer, refusals included.

    It goes around the one that makes answers of errors. A client that leaves before its answer is not counted.
    """

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        responded(_route(request) or UNMATCHED, response.status)
        return response

    return count


def tracing(traces: Tracer) -> Any:
    """A middleware, to go around all others, that traces the routes that run prompts; handlers find it as `TRACE`."""

    @web.middleware
    async def trace(request: web.Request, handler: Handler) -> web.StreamResponse:
        operation = TRACED_ROUTES.get(_route(request) or "")
        if operation is None:
            return await handler(request)
        one = request[TRACE] = traces.begin(operation, request.headers)
        try:
            response = await handler(request)
        except (asyncio.CancelledError, ConnectionError):
            one.end(CLIENT_CLOSED, "client_closed_request")
            raise
        if not response.prepared:  # a stream has gone out by now, and says it already
            response.headers.update(one.headers)
        broken = response.broken if isinstance(response, EventStream) else None
        failed = response.status if broken is None else broken.status
        one.end(response.status, str(failed) if failed >= 400 else None)
        return response

    return trace


def _route(request: web.Request) -> str | None:
    resource = request.match_info.route.resource
    return None if resource is None else resource.canonical


def sanitised(supplied: str) -> str:
    """The part of a client's id that is safe in headers and logs."""
    return _UNSAFE.sub("", supplied[: 4 * MAX_ID_LENGTH])[:MAX_ID_LENGTH]


async def add_request_id(http: web.Request, response: web.StreamResponse) -> None:
    """A response-prepare signal: the client's own id, or the one a handler has set, or a new one."""
    if given := sanitised(http.headers.get(REQUEST_ID, "")):
        response.headers[REQUEST_ID] = given
    else:
        response.headers.setdefault(REQUEST_ID, f"req-{uuid.uuid4().hex}")
