"""Which web pages of other origins may call this server: cross-origin resource sharing, off by default.

The protocol: https://fetch.spec.whatwg.org/#http-cors-protocol. Keys are sent in the header `Authorization`, which the
page sets itself, so no page is ever allowed to send a browser's own credentials. Routes that are not for programs, the
admin's and those of the live page, are shared with no origin.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from adaptspec.errors import ConfigError
from adaptspec.server.errors import Handler

ANY_ORIGIN = "*"
MAX_AGE = "600"  # seconds for which a browser need not ask again
_METHODS = "GET, HEAD, POST"
_EXPOSED = "x-request-id, Retry-After"
_NOT_SHARED = re.compile(r"/(?:admin|live|page)/|/$")
_HEADER_NAMES = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


class AllowedOrigins:
    """Origins whose pages may call this server; `*` is any."""

    def __init__(self, allowed: Collection[str]) -> None:
        """Raises ConfigError for text that is no origin."""
        self._allowed = frozenset(map(_normal, allowed))

    @property
    def any(self) -> bool:
        return ANY_ORIGIN in self._allowed

    def granted(self, http: web.Request) -> str | None:
        """The value of `Access-Control-Allow-Origin` for a request; None where its origin may not read the answer."""
        origin = http.headers.get(hdrs.ORIGIN)
        if origin is None:
            return None
        return ANY_ORIGIN if self.any else origin if origin in self._allowed else None


def cors(origins: AllowedOrigins) -> Any:
    """A middleware that answers preflights of allowed origins. They bring no key, so it goes around authentication."""

    @web.middleware
    async def preflight(http: web.Request, handler: Handler) -> web.StreamResponse:
        wanted = http.headers.get(hdrs.ACCESS_CONTROL_REQUEST_METHOD)
        if http.method != hdrs.METH_OPTIONS or wanted is None or origins.granted(http) is None:
            return await handler(http)
        found = await http.app.router.resolve(http.clone(method=wanted))
        if not _shared(found, http.path):
            return await handler(http)
        headers = {
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: _METHODS,
            hdrs.ACCESS_CONTROL_MAX_AGE: MAX_AGE,
            hdrs.VARY: f"{hdrs.ACCESS_CONTROL_REQUEST_METHOD}, {hdrs.ACCESS_CONTROL_REQUEST_HEADERS}",
        }
        names = http.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "").strip()
        if _HEADER_NAMES.fullmatch(names):
            headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = names
        response = web.Response(status=204, headers=headers)
        _share(origins, http, response)
        return response

    return preflight


def sharing(origins: AllowedOrigins) -> Any:
    """A response-prepare signal that lets allowed origins read any answer: streams and errors, too."""

    async def share(http: web.Request, response: web.StreamResponse) -> None:
        if hdrs.ACCESS_CONTROL_ALLOW_ORIGIN not in response.headers and _shared(http.match_info, http.path):
            _share(origins, http, response)

    return share


def _share(origins: AllowedOrigins, http: web.Request, response: web.StreamResponse) -> None:
    granted = origins.granted(http)
    if granted is not None:
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = granted
        response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = _EXPOSED
    if not origins.any:  # a cache must not give one origin's answer to another
        response.headers[hdrs.VARY] = ", ".join([*response.headers.getall(hdrs.VARY, ()), hdrs.ORIGIN])


def _shared(found: web.UrlMappingMatchInfo, path: str) -> bool:
    """Whether a route is for programs. A path without one counts by its spelling, so that a page can read the 404."""
    resource = found.route.resource
    return _NOT_SHARED.match(path if resource is None else resource.canonical) is None


def _normal(origin: str) -> str:
    """An origin as browsers write it. Raises ConfigError."""
    if origin == ANY_ORIGIN:
        return origin
    try:
        parts = urlsplit(origin)
        usable = bool(parts.scheme and parts.hostname and origin.isascii()) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or origin != f"{parts.scheme}://{parts.netloc}" or "@" in parts.netloc or "*" in origin:
        raise ConfigError(
            f"--allowed-origins {origin!r} is no origin; write it as the browser sends it, such as https://example.com "
            "or http://localhost:3000, without a path, or * for any"
        )
    return f"{parts.scheme}://{parts.netloc.lower().removesuffix(_DEFAULT_PORTS.get(parts.scheme, '/'))}"
