"""Traces of generation requests: begun with the request, ended with the answer, its context sent back.

Knows HTTP; what a trace says and where it goes is telemetry's affair.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

from aiohttp import web

from adaptspec.server.problem import Handler
from adaptspec.server.protocols import Trace, Tracing
from adaptspec.server.sse import Stream

OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion", "/v1/responses": "chat"}
_CURRENT: ContextVar[Trace | None] = ContextVar("trace", default=None)
CLIENT_CLOSED = 499  # as proxies log it: nobody was left to get a status


def tracing(traces: Tracing) -> Any:
    """A middleware, to go around all others, that traces the routes that run prompts."""

    @web.middleware
    async def trace(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        operation = None if resource is None else OPERATIONS.get(resource.canonical)
        if operation is None:
            return await handler(request)
        one = traces.begin(operation, request.headers)
        before = _CURRENT.set(one)
        try:
            response = await handler(request)
        except (asyncio.CancelledError, ConnectionError):
            one.end(CLIENT_CLOSED, "client_closed_request")
            raise
        finally:
            _CURRENT.reset(before)
        if not response.prepared:  # a stream has gone out by now, and says it already
            response.headers.update(one.headers)
        broken = response.broken if isinstance(response, Stream) else None
        failed = response.status if broken is None else broken.status
        one.end(response.status, str(failed) if failed >= 400 else None)
        return response

    return trace


def current_trace() -> Trace | None:
    """The trace of the request that is being handled, if it has one."""
    return _CURRENT.get()
