"""Server-sent events: a stream of JSON objects as an HTTP answer, and errors within it."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from aiohttp import web

from adaptspec.errors import AdaptSpecError
from adaptspec.server.padding import Padding, sending
from adaptspec.server.problem import INTERNAL, Problem, problem_of

# The last keeps nginx from collecting the pieces.
HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_logger = logging.getLogger(__name__)


class Stream(web.StreamResponse):
    """An answer whose status goes out first; `broken` is the problem that it ended with after that."""

    broken: Problem | None = None


async def respond(
    http: web.Request,
    events: AsyncGenerator[dict[str, Any], None],
    headers: dict[str, str],
    padding: Padding | None = None,
    *,
    named: bool = False,
) -> web.StreamResponse:
    """Send the events, then `[DONE]`; with `padding`, in packets of one size and pace.

    `named`: the events have a `type`, which the stream says as well.

    Waits for the first event before it answers, so that a request the engine refuses gets a proper status.
    An error after that becomes an event with an error object.
    """
    response = Stream(headers=HEADERS | headers)
    async with aclosing(events):
        first = await anext(events)
        await response.prepare(http)
        async with sending(response.write, padding) as write:
            try:
                await write(_event(first, named=named))
                async for body in events:
                    await write(_event(body, named=named))
            except ConnectionError:
                raise  # the client has gone: nobody to tell
            except Exception as error:
                if isinstance(error, AdaptSpecError):
                    problem = problem_of(error)
                else:
                    _logger.exception("Failed in the middle of a stream")
                    problem = INTERNAL
                response.broken = problem
                await write(event(problem.body()))
            await write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def event(body: Mapping[str, Any], name: str | None = None, *, allow_nan: bool = True) -> bytes:
    """One event. Raises ValueError for a number that JSON has no word for, unless `allow_nan`."""
    data = f"data: {json.dumps(body, separators=(',', ':'), allow_nan=allow_nan)}\n\n"
    return (data if name is None else f"event: {name}\n{data}").encode()


def _event(body: dict[str, Any], *, named: bool) -> bytes:
    return event(body, str(body["type"]) if named else None)
