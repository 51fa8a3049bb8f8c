"""Errors that only the server raises; the rest are in `adaptspec.errors`.

RequestError
 +-- BodyTypeError    the body is not declared to be JSON
 +-- BodyCodingError  the body is compressed
 +-- BodyTimeoutError the body did not arrive in time
 +-- AdminKeyError    the admin key is missing or wrong
 +-- ApiKeyError      an API key is missing or wrong
 +-- HostError        the server was called by a name that is not its own
 +-- UnknownPolicyError a policy that the admin names is not here
 +-- PolicyInUseError a policy that cannot be deleted now
 +-- OverloadedError
      +-- DrainingError    the server is shutting down
EngineError
 +-- EngineStoppedError    no request can be served any more
"""

from __future__ import annotations

from adaptspec.errors import EngineError, OverloadedError, RequestError


class BodyTypeError(RequestError):
    """The body is not declared to be JSON."""


class BodyCodingError(RequestError):
    """The body is compressed."""


class BodyTimeoutError(RequestError):
    """The body did not arrive in time."""


class AdminKeyError(RequestError):
    """The admin key is missing or wrong."""


class ApiKeyError(RequestError):
    """An API key is missing or wrong."""


class HostError(RequestError):
    """The server was called by a name that is not its own: a web page may have had it pointed here."""


class UnknownPolicyError(RequestError):
    """A policy that the admin names is not here."""


class PolicyInUseError(RequestError):
    """A policy that cannot be deleted: others, or requests that name none, need it."""


class DrainingError(OverloadedError):
    """The server is shutting down: it takes no new requests, and has given up on this one."""


class EngineStoppedError(EngineError):
    """The engine thread has ended; only a restart helps."""
