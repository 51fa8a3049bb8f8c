"""Errors that only the server raises; the rest are in `adaptspec.errors`.

RequestError
 +-- BodyTypeError    the body is not declared to be JSON
 +-- AdminKeyError    the admin key is missing or wrong
 +-- OverloadedError
      +-- DrainingError    the server is shutting down
EngineError
 +-- EngineStoppedError    no request can be served any more
"""

from __future__ import annotations

from adaptspec.errors import EngineError, OverloadedError, RequestError


class BodyTypeError(RequestError):
    """The body is not declared to be JSON."""


class AdminKeyError(RequestError):
    """The admin key is missing or wrong."""


class DrainingError(OverloadedError):
    """The server is shutting down: it takes no new requests, and has given up on this one."""


class EngineStoppedError(EngineError):
    """The engine thread has ended; only a restart helps."""
