"""Traces of generation requests: begun with the request, ended with the answer, its context sent back.

Knows HTTP; what a trace says and where it goes is telemetry's affair.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from adaptspec.server.problem import Handler
from adaptspec.server.protocols import Trace, Tracing

OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
TRACE = "adaptspec-trace"
CLIENT_CLOSED = 499  # as proxies log it: nobody was left to get a status


def tracing(traces: Tracing) -> Any:
    """A middleware, to go around all others, that traces the routes that run prompts."""

    @web.middleware
    async def trace(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        operation = None if resource is None else OPERATIONS.get(resource.canonical)
        if operation is None:
            return await handler(request)
        one = request[TRACE] = traces.begin(operation, request.headers)
        try:
            response = await handler(request)
        except (asyncio.CancelledError, ConnectionError):
            one.end(CLIENT_CLOSED, "client_closed_request")
            raise
        one.end(response.status, str(response.status) if response.status >= 400 else None)
        return response

    return trace


def trace_of(request: web.Request) -> Trace | None:
    """The trace of a request, if it has one."""
    found: Trace | None = request.get(TRACE)
    return found


async def add_trace_context(request: web.Request, response: web.StreamResponse) -> None:
    """A response-prepare signal: the client learns which trace its answer is in."""
    trace = trace_of(request)
    if trace is not None:
        response.headers.update(trace.headers)
