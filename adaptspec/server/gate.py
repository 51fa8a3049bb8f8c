"""The middleware that every request passes before its handler: how its body is coded, the name it was sent to, the key.

What is open is decided by the route that was matched, never by the path as it was written: no encoding, slash or
method leads around it, and what leads nowhere is as closed as the rest.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from adaptspec.server.errors import AdminKeyError, ApiKeyError, BodyCodingError
from adaptspec.server.exposure import Hosts
from adaptspec.server.keys import Keys
from adaptspec.server.problem import Handler

# The page's files hold no data: it asks its reader for the key that all it shows needs.
OPEN = frozenset({"/health", "/ready", "/", "/dashboard", "/page/{name}"})
ADMIN = "/admin/"
_UNCHANGED = frozenset({"", "identity", "chunked"})  # codings that leave a body as it is


def gate(api: Keys, admin: Keys, hosts: Hosts | None) -> Any:
    """A middleware: the admin key for `/admin/`, an API key (where there are any) for all but `OPEN`.

    `hosts` None: the server may be called by any name. Compressed bodies are refused everywhere: unpacking a few bytes
    can take seconds.
    """

    @web.middleware
    async def check(http: web.Request, handler: Handler) -> web.StreamResponse:
        _check_coding(http)
        if hosts is not None:
            hosts.check(http)
        resource = http.match_info.route.resource
        place = "" if resource is None else resource.canonical
        if place.startswith(ADMIN):
            if not admin.admit(http):
                raise AdminKeyError("this needs the admin key: send it as Authorization: Bearer KEY")
        elif place not in OPEN and api and not api.admit(http):
            raise ApiKeyError("this needs an API key of this server: send it as Authorization: Bearer KEY")
        return await handler(http)

    return check


def _check_coding(http: web.Request) -> None:
    for header in ("Content-Encoding", "Transfer-Encoding"):
        codings = ",".join(http.headers.getall(header, ())).split(",")
        if not all(coding.strip().lower() in _UNCHANGED for coding in codings):
            raise BodyCodingError(f"this server takes no compressed bodies; send it as it is, without {header}")
