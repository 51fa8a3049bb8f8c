"""Errors in OpenAI's shape: which status, type and code an error of our tree gets, and the middleware that says so."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from aiohttp import web

from adaptspec.errors import (
    AdaptSpecError,
    EngineError,
    OverloadedError,
    PromptTooLongError,
    RequestError,
    UnknownModelError,
)
from adaptspec.server.errors import (
    AdminKeyError,
    ApiKeyError,
    BodyCodingError,
    BodyTimeoutError,
    BodyTypeError,
    DrainingError,
    EngineStoppedError,
    HostError,
    PolicyInUseError,
    UnknownPolicyError,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

RETRY_SECONDS = "1"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Problem:
    """An error as a client sees it."""

    status: int
    message: str
    kind: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> web.Response:
        """The whole HTTP answer; one that says that the connection ends ends it."""
        response = web.json_response(self.body(), status=self.status, headers=dict(self.headers))
        if self.headers.get("Connection") == "close":
            response.force_close()
        return response


INTERNAL = Problem(500, "the server failed on this request; its log says why", "server_error", "internal_error")
_RETRY = MappingProxyType({"Retry-After": RETRY_SECONDS})
_CLOSE = MappingProxyType({"Connection": "close"})
_PLAIN = MappingProxyType({"Connection": "close", "Accept-Encoding": "identity"})
_CHALLENGE = MappingProxyType({"WWW-Authenticate": "Bearer"})


# The first class that fits wins, so subclasses come before their parents.
_BY_CLASS: tuple[tuple[type[AdaptSpecError], Problem], ...] = (
    (DrainingError, Problem(503, "", "server_error", "draining", headers=_RETRY)),
    (OverloadedError, Problem(429, "", "rate_limit_error", "overloaded", headers=_RETRY)),
    (UnknownModelError, Problem(400, "", code="policy_not_found")),
    (PromptTooLongError, Problem(400, "", code="context_length_exceeded")),
    (BodyTimeoutError, Problem(408, "", code="request_timeout", headers=_CLOSE)),
    (BodyCodingError, Problem(415, "", code="unsupported_content_encoding", headers=_PLAIN)),
    (BodyTypeError, Problem(415, "", code="unsupported_media_type")),
    (AdminKeyError, Problem(401, "", code="invalid_api_key", headers=_CHALLENGE)),
    (ApiKeyError, Problem(401, "", code="invalid_api_key", headers=_CHALLENGE)),
    (UnknownPolicyError, Problem(404, "", code="policy_not_found")),
    (PolicyInUseError, Problem(409, "", code="policy_in_use")),
    (HostError, Problem(403, "", code="host_not_allowed")),
    (RequestError, Problem(400, "")),
    (EngineStoppedError, Problem(503, "", "server_error", "engine_stopped")),
    (EngineError, Problem(500, "", "server_error", "engine_error")),
)
_MODEL_NOT_FOUND = Problem(404, "", code="model_not_found")


def problem_of(error: AdaptSpecError) -> Problem:
    """The problem an error of our tree is to a client."""
    param = error.param if isinstance(error, RequestError) else None
    if isinstance(error, UnknownModelError) and param == "model":
        return replace(_MODEL_NOT_FOUND, message=str(error), param=param)
    for kind, problem in _BY_CLASS:
        if isinstance(error, kind):
            return replace(problem, message=str(error), param=param)
    _logger.error("An error that no client should see", exc_info=error)
    return INTERNAL


def _problem_of_http(error: web.HTTPException, http: web.Request) -> Problem:
    place = f"{http.method} {http.path[:200]}"
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return Problem(
            405, f"{place} is not possible; use {allowed}", code="method_not_allowed", headers={"Allow": allowed}
        )
    if isinstance(error, web.HTTPNotFound):
        return Problem(404, f"{place} does not exist; see /v1/models for what is served", code="not_found")
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        limit = http.client_max_size
        return Problem(413, f"the body is larger than {limit} bytes; send a shorter prompt", code="request_too_large")
    if isinstance(error, web.HTTPExpectationFailed):
        return Problem(417, "this server cannot meet the Expect header; leave it out", code="expectation_failed")
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return Problem(error.status, error.reason or "the request failed", kind)


async def shape_refusal(http: web.Request, response: web.StreamResponse) -> None:
    """A response-prepare signal: what aiohttp refuses before any middleware runs gets our shape, too."""
    if isinstance(response, web.HTTPException) and response.status >= 400:
        problem = _problem_of_http(response, http)
        response.headers.update(problem.headers)
        response.content_type = "application/json"
        body = json.dumps(problem.body()).encode()
        response.body = body
        response.headers["Content-Length"] = str(len(body))  # aiohttp has counted its own text by now


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever a handler raises before it has answered into an OpenAI-shaped error."""
    try:
        return await handler(request)
    except AdaptSpecError as error:
        return problem_of(error).response()
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _problem_of_http(error, request).response()
    except web.RequestPayloadError as error:
        kind = type(error.__cause__ or error).__name__  # its words may quote the body
        return Problem(400, f"the body could not be read ({kind}); send it whole, as its headers say").response()
    except ConnectionError:
        raise  # the client has gone: nobody to tell
    except Exception:
        # The path as it came: decoded it could hold line ends, and make up lines of the log.
        _logger.exception("Failed on %s %s", request.method, request.rel_url.raw_path[:200])
        return INTERNAL.response()
