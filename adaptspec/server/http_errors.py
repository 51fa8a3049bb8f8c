"""Errors as clients see them: those that only the server raises, and status, type and code of every error."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from types import MappingProxyType

from aiohttp import web

from adaptspec.errors import (
    AdaptSpecError,
    EngineError,
    OverloadedError,
    PromptTooLongError,
    RequestError,
    UnknownModelError,
)
from adaptspec.server.api.answers import Answer, Json

_CHAT, _COMPLETIONS, _MODELS = "POST /v1/chat/completions", "POST /v1/completions", "GET /v1/models"
_BASE_URL = "set the base URL of the client so that it ends in /v1, once"
_OLLAMA, _LLAMA_CPP = "it has OpenAI's API and not Ollama's", "it has OpenAI's API and not llama.cpp's"
_ANTHROPIC = f"it has OpenAI's API and not Anthropic's, so use {_CHAT}"
_TGI = f"it has OpenAI's API and not TGI's or SGLang's, so use {_COMPLETIONS}"
_NO_EMBEDDINGS = "it generates text and computes no embeddings, so use another server for them"
_NO_SCORES = "it generates text and neither ranks nor classifies it, so use another server for that"
_TEXT_ONLY = f"it reads and writes text only, so send the text to {_CHAT}"
_NOT_STORED = "it keeps no responses or conversations, so send the whole conversation with POST /v1/responses"
_NO_FILES = f"it has no files, batches, training, assistants or threads, so send each conversation to {_CHAT}"
# What to use instead of routes of other APIs, and of OpenAI's that are not here. The longest matching prefix wins. A
# route that ends in a slash matches only paths below it.
_OTHER_ROUTES: Mapping[str, str] = {
    "/models": _BASE_URL,
    "/v1/v1": _BASE_URL,
    "/api/chat": f"{_OLLAMA}, so use {_CHAT}",
    "/api": f"{_OLLAMA}; see /openapi.json for its routes",
    "/api/generate": f"{_OLLAMA}, so use {_COMPLETIONS}",
    "/api/tags": f"{_OLLAMA}, so use {_MODELS}",
    "/api/show": f"{_OLLAMA}, so use {_MODELS}",
    "/api/ps": f"{_OLLAMA}, so use {_MODELS}",
    "/api/version": f"{_OLLAMA}, so use GET /version",
    "/v1/messages": _ANTHROPIC,
    "/v1/complete": _ANTHROPIC,
    "/v1beta": f"it has OpenAI's API and not Gemini's, so use {_CHAT}",
    "/completion": f"{_LLAMA_CPP}, so use {_COMPLETIONS}",
    "/infill": f"{_LLAMA_CPP}, so use {_COMPLETIONS}",
    "/props": f"{_LLAMA_CPP}, so use {_MODELS}",
    "/slots": f"{_LLAMA_CPP}, so use GET /metrics",
    "/generate": _TGI,
    "/generate_stream": _TGI,
    "/v1/embeddings": _NO_EMBEDDINGS,
    "/embeddings": _NO_EMBEDDINGS,
    "/embedding": _NO_EMBEDDINGS,
    "/api/embed": _NO_EMBEDDINGS,
    "/api/embeddings": _NO_EMBEDDINGS,
    "/v1/moderations": _NO_SCORES,
    "/v1/rerank": _NO_SCORES,
    "/v2/rerank": _NO_SCORES,
    "/rerank": _NO_SCORES,
    "/v1/score": _NO_SCORES,
    "/score": _NO_SCORES,
    "/classify": _NO_SCORES,
    "/v1/audio": _TEXT_ONLY,
    "/v1/images": _TEXT_ONLY,
    "/v1/videos": _TEXT_ONLY,
    "/v1/realtime": _TEXT_ONLY,
    "/v1/responses/": _NOT_STORED,
    "/apply-template": f"{_LLAMA_CPP}, so use POST /tokenize",
    "/v1/conversations": _NOT_STORED,
    "/v1/chat/completions/": _NOT_STORED,
    "/v1/files": _NO_FILES,
    "/v1/uploads": _NO_FILES,
    "/v1/batches": _NO_FILES,
    "/v1/fine_tuning": _NO_FILES,
    "/v1/assistants": _NO_FILES,
    "/v1/threads": _NO_FILES,
}

_LONGEST_PATH = 60  # characters that are compared with the routes

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_logger = logging.getLogger(__name__)


class RefusedError(RequestError):
    """A request that is refused for what it is sent by, to or in, not for what it asks: it has a status of its own."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        """`headers` have `_` in place of `-`."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class DrainingError(OverloadedError):
    """The server is shutting down: it takes no new requests, and has given up on this one."""


class EngineStoppedError(EngineError):
    """The engine thread has ended; only a restart helps."""


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
        """The whole HTTP answer; one that says that the connection ends ends it."""
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
    """What an error of our tree is to a client."""
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


def _of_aiohttp(error: web.HTTPException, http: web.Request) -> HttpError:
    place = f"{http.method} {http.path[:200]}"
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        message = f"{place} is not possible; use {allowed}"
        return HttpError(405, message, code="method_not_allowed", headers={"Allow": allowed})
    if isinstance(error, web.HTTPNotFound):
        # Not 501 for other APIs' routes: clients send a request again after a status from 500 on.
        return HttpError(404, f"{place} does not exist{_instead(http)}", code="not_found")
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        message = f"the body is larger than {http.client_max_size} bytes; send a shorter prompt"
        return HttpError(413, message, code="request_too_large")
    if isinstance(error, web.HTTPExpectationFailed):
        return HttpError(417, "this server cannot meet the Expect header; leave it out", code="expectation_failed")
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return HttpError(error.status, error.reason or "the request failed", kind)


def _instead(http: web.Request) -> str:
    """What to do in place of calling a route that is not there."""
    routes = {resource.canonical for resource in http.app.router.resources()} - {"/"}
    meant = _meant(http.path, routes)
    if meant is not None:
        return f" on this server: {meant}"
    path = http.path.rstrip("/")
    fitting = [route for route in _OTHER_ROUTES if path == route or path.startswith(f"{route.rstrip('/')}/")]
    if fitting:
        return f" on this server: {_OTHER_ROUTES[max(fitting, key=len)]}"
    close = get_close_matches(path[:_LONGEST_PATH], [route for route in routes if "{" not in route], n=1, cutoff=0.8)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"{hint}; see /openapi.json for the routes of this server"


def _meant(path: str, routes: Collection[str]) -> str | None:
    """Advice for a path that is a route of this server but for its slashes or where /v1 stands in it."""
    parts = [part for part in path.split("/") if part]
    before, tail = "/".join(parts), parts
    if "v1" in parts:
        tail = parts[len(parts) - parts[::-1].index("v1") :]
    for route, advice in (
        (f"/{before}", "with one slash between its parts and none at its end"),
        ("/".join(("/v1", *tail)), _BASE_URL),
        ("/".join(("", *tail)), "which is not below /v1"),
    ):
        if route in routes:
            return f"use {route}, {advice}" if advice != _BASE_URL else f"use {route}, so {advice}"
    return None


async def shape_refusal(http: web.Request, response: web.StreamResponse) -> None:
    """A response-prepare signal: what aiohttp refuses before any middleware runs gets our shape, too."""
    if isinstance(response, web.HTTPException) and response.status >= 400:
        error = _of_aiohttp(response, http)
        response.headers.update(error.headers)
        response.content_type = "application/json"
        body = json.dumps(error.body()).encode()
        response.body = body
        response.headers["Content-Length"] = str(len(body))  # aiohttp has counted its own text by now


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever a handler raises before it has answered into an OpenAI-shaped error."""
    try:
        return await handler(request)
    except AdaptSpecError as error:
        return http_error(error).response()
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _of_aiohttp(error, request).response()
    except web.RequestPayloadError as error:
        kind = type(error.__cause__ or error).__name__  # its words may quote the body
        return HttpError(400, f"the body could not be read ({kind}); send it whole, as its headers say").response()
    except ConnectionError:
        raise  # the client has gone: nobody to tell
    except Exception:
        # The path as it came: decoded it could hold line ends, and make up lines of the log.
        _logger.exception("Failed on %s %s", request.method, request.rel_url.raw_path[:200])
        return INTERNAL.response()
