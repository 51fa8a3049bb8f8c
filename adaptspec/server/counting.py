"""Counts HTTP answers by route and status, refusals included. Knows no endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from adaptspec.server.problem import Handler

UNMATCHED = "unmatched"  # one name for all paths and methods that lead nowhere: clients must not make new ones


def counting(responded: Callable[[str, int], None]) -> Any:
    """A middleware that reports the route's pattern and the status of every answer.

    Goes around the one that makes answers of errors. A client that leaves before its answer is not counted.
    """

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        resource = request.match_info.route.resource
        responded(UNMATCHED if resource is None else resource.canonical, response.status)
        return response

    return count
