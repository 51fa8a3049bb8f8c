"""Errors as clients see them: status, type and code of every error, and a log without a client's words."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from adaptspec.errors import (
    AdaptSpecError,
    DrainingError,
    EngineError,
    EngineStoppedError,
    OverloadedError,
    PromptTooLongError,
    RequestError,
    UnknownModelError,
)
from adaptspec.server.api.fields import Json
from adaptspec.server.api.outputs import Answer
from adaptspec.server.missing_routes import advice_for, removed_route

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_logger = logging.getLogger(__name__)


class RefusedError(RequestError):
    """A request that is refused for its headers, its route or its connection, with a status of its own."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        """`headers` have `_` in place of `-`."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class ErrorDetail(Answer):
    """What went wrong, what to do, and the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(Answer):
    """A request that could not be served."""

    error: ErrorDetail


@dataclass(frozen=True)
class HttpError:
    """An error with its status and headers."""

    status: int
    message: str
    kind: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def body(self) -> Json:
        detail = ErrorDetail(message=self.message, type=self.kind, param=self.param, code=self.code)
        return Error(error=detail).written()

    def response(self) -> web.Response:
        """The whole HTTP answer. `Connection: close` among the headers closes the connection."""
        response = web.json_response(self.body(), status=self.status, headers=dict(self.headers))
        if self.headers.get("Connection") == "close":
            response.force_close()
        return response


INTERNAL = HttpError(500, "the server failed on this request; its log says why", "server_error", "internal_error")
_RETRY = MappingProxyType({"Retry-After": "1"})  # seconds

# The first class that fits wins, so subclasses come before their parents.
_BY_CLASS: tuple[tuple[type[AdaptSpecError], HttpError], ...] = (
    (DrainingError, HttpError(503, "", "server_error", "draining", headers=_RETRY)),
    (OverloadedError, HttpError(429, "", "rate_limit_error", "overloaded", headers=_RETRY)),
    (UnknownModelError, HttpError(400, "", code="policy_not_found")),
    (PromptTooLongError, HttpError(400, "", code="context_length_exceeded")),
    (RequestError, HttpError(400, "")),
    (EngineStoppedError, HttpError(503, "", "server_error", "engine_stopped")),
    (EngineError, HttpError(500, "", "server_error", "engine_error")),
)


def http_error(error: AdaptSpecError) -> HttpError:
    """The status, type and code of one of our errors."""
    param = error.param if isinstance(error, RequestError) else None
    if isinstance(error, RefusedError):
        return HttpError(error.status, str(error), code=error.code, headers=error.headers)
    if isinstance(error, UnknownModelError) and param == "model":
        return HttpError(404, str(error), code="model_not_found", param=param)
    for kind, found in _BY_CLASS:
        if isinstance(error, kind):
            return replace(found, message=str(error), param=param)
    _logger.error("An error that no client should see", exc_info=error)
    return INTERNAL


@web.middleware
async def error_responses(http: web.Request, handler: Handler) -> web.StreamResponse:
    """A middleware that turns what a handler raises before it has answered into OpenAI's error object."""
    try:
        return await handler(http)
    except AdaptSpecError as error:
        return http_error(error).response()
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _of_aiohttp(error, http).response()
    except web.RequestPayloadError as error:
        kind = type(error.__cause__ or error).__name__  # its message may quote the body
        return HttpError(400, f"the body could not be read ({kind}); send it whole, as its headers say").response()
    except ConnectionError:
        raise  # the client has gone
    except Exception:
        # The raw path: decoded it could hold line ends, and forge lines of the log.
        _logger.exception("Failed on %s %s", http.method, http.rel_url.raw_path[:200])
        return INTERNAL.response()


async def shape_refusal(http: web.Request, response: web.StreamResponse) -> None:
    """A response-prepare signal that gives our shape to what aiohttp refuses before any middleware runs."""
    if isinstance(response, web.HTTPException) and response.status >= 400:
        error = _of_aiohttp(response, http)
        response.headers.update(error.headers)
        response.content_type = "application/json"
        body = json.dumps(error.body()).encode()
        response.body = body
        response.headers["Content-Length"] = str(len(body))  # aiohttp has counted its own text by now


def _of_aiohttp(error: web.HTTPException, http: web.Request) -> HttpError:
    route = f"{http.method} {http.path[:200]}"
    routes = {resource.canonical for resource in http.app.router.resources()}
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        removed = None if http.path in routes else removed_route(http.path)
        message = (
            f"{http.method} is not allowed for {http.path[:200]}; use {allowed}"
            if removed is None
            else f"{route} is not possible: {removed}"
        )
        return HttpError(405, message, code="method_not_allowed", headers={"Allow": allowed})
    if isinstance(error, web.HTTPNotFound):
        # Not 501 for other APIs' routes: clients send a request again after a status from 500 on.
        return HttpError(404, f"{route} does not exist{advice_for(http.path, routes)}", code="not_found")
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        message = f"the body is larger than {http.client_max_size} bytes; send a shorter prompt"
        return HttpError(413, message, code="request_too_large")
    if isinstance(error, web.HTTPExpectationFailed):
        return HttpError(417, "this server cannot meet the Expect header; leave it out", code="expectation_failed")
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return HttpError(error.status, error.reason or "the request failed", kind)


class ClientSafeLogger(logging.LoggerAdapter):  # type: ignore[type-arg]  # Python 3.10 cannot subscript it
    """A logger for aiohttp's server, whose parser quotes the bytes it fails on: they may be a prompt or a key.

    An error of a client's bytes is logged by its kind and length. A client that has left is logged for debugging only.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        error = kwargs.get("exc_info")
        error = sys.exc_info()[1] if error is True else error
        if isinstance(error, ConnectionError):
            super().log(logging.DEBUG, f"{msg}: the client has gone", *args)
        elif isinstance(error, BaseException) and _quotes_client(error):
            super().log(min(level, logging.WARNING), f"{msg}: %s", *args, _describe_without_text(error))
        else:
            super().log(level, msg, *args, **kwargs)


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """For `loop.set_exception_handler`: errors that no task awaits, or that end a connection, without quotes."""
    error = context.get("exception")
    if isinstance(error, BaseException) and ("protocol" in context or _quotes_client(error)):
        _logger.warning("%s: %s", context.get("message"), _describe_without_text(error))
    else:
        loop.default_exception_handler(context)


_FAULTS = (HttpProcessingError, web.RequestPayloadError)


def _quotes_client(error: BaseException) -> bool:
    """Whether an error, or one of its causes, is about a client's bytes."""
    return any(isinstance(cause, _FAULTS) for cause in _causes(error))


def _describe_without_text(error: BaseException) -> str:
    """The kind and length of an error; with its traceback if it is one of ours that a client's caused."""
    described = f"{type(error).__name__} ({len(str(error))} characters)"
    if isinstance(error, _FAULTS):
        return described
    return f"{described}\n{''.join(traceback.format_tb(error.__traceback__))}".rstrip()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
