"""Who may use the server: keys, the names that a browser may call it by, and addresses that other machines reach.

Access goes by the route that was matched, never by the path as it was typed, so no encoding, slash or method leads
around a key. A path that has no route is 404 with a key and without: no handler runs, and the routes are public.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from aiohttp import hdrs, web

from adaptspec.errors import ConfigError
from adaptspec.server.cors import AllowedOrigins
from adaptspec.server.errors import Handler, RefusedError

# The page's files hold no data: the page asks its reader for the key that its data needs.
OPEN = frozenset({"/health", "/ready", "/", "/page/{name}"})
ADMIN = "/admin/"
KEY_NAME = web.RequestKey("key_name", str)
_UNCHANGED = frozenset({"", "identity", "chunked"})  # codings that leave a body as it is
_SCHEME = b"bearer "
_COMMENT = re.compile(r"(?:^|\s)#")


class ApiKeys:
    """Any number of keys, compared in a time that does not depend on them."""

    def __init__(self, keys: Iterable[tuple[str, str | None]]) -> None:
        """`keys` with their names, if they have any (see `named_key`). Raises ConfigError for an empty key.

        A key without a name is named by its digest, since requests of one key share cached prompts and histories.
        """
        keys = list(keys)
        if not all(key for key, _ in keys):
            raise ConfigError("a key is empty; leave it out, or give one")
        # All digests have one length: comparing the keys themselves would take longer for keys of the right length.
        digests = [(_digest(key.encode("utf-8", "surrogateescape")), name) for key, name in keys]
        self._names = {digest: name or f"sha256:{digest.hex()[:16]}" for digest, name in digests}

    def __bool__(self) -> bool:
        return bool(self._names)

    def name_of_key(self, headers: Mapping[str, str]) -> str | None:
        """The name of the key in `Authorization: Bearer KEY`; None if the headers have none of these keys."""
        # aiohttp decodes headers as UTF-8 with surrogates for other bytes; this restores the client's bytes.
        given = headers.get(hdrs.AUTHORIZATION, "").encode("utf-8", "surrogateescape")
        digest = _digest(given[len(_SCHEME) :] if given[: len(_SCHEME)].lower() == _SCHEME else b"")
        found = [name for known, name in self._names.items() if hmac.compare_digest(digest, known)]
        return found[0] if found else None


class AllowedHosts:
    """Names by which a server without keys may be called.

    The browser of a web page whose own name was made to point to this machine (DNS rebinding) sends that name as Host;
    programs on this machine send localhost or an address. Addresses are always allowed: a page is served from an
    address only if its browser has connected to it.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(name.lower().rstrip(".") for name in names) | {"localhost"}

    def check(self, http: web.Request) -> None:
        """Raise RefusedError for an unknown name. A browser always sends a Host, so a request without one passes."""
        given = http.headers.get(hdrs.HOST, "")
        name = _without_port(given)
        if not given or name in self._names or name.endswith(".localhost") or _is_address(name):
            return
        raise RefusedError(
            403,
            "host_not_allowed",
            "this server answers to localhost and to addresses; start it with --allowed-hosts NAME to call it by "
            "another name, or with an API key",
        )


class Access:
    """Who may use a server, and by which names and from which web pages."""

    def __init__(
        self,
        api_keys: Collection[str] = (),
        admin_key: str | None = None,
        *,
        hosts: AllowedHosts | None = None,
        origins: AllowedOrigins | None = None,
    ) -> None:
        """Keys as `named_key` reads them. Without `api_keys`, all clients are served; without `admin_key`, there are no
        admin routes.

        `hosts` None: the server may be called by any name. `origins` None: web pages of no other origin may call it.
        Raises ConfigError for an empty key.
        """
        self.api_keys = ApiKeys(map(named_key, api_keys))
        self.admin_keys = ApiKeys([] if admin_key is None else [named_key(admin_key)])
        self.hosts = hosts
        self.origins = origins

    @classmethod
    def on_address(
        cls,
        host: str,
        *,
        api_keys: Collection[str] = (),
        admin_key: str | None = None,
        insecure: bool = False,
        allowed_hosts: Collection[str] = (),
        allowed_origins: Collection[str] = (),
    ) -> Access:
        """The access to a server that listens on `host`.

        Raises ConfigError if other machines could use it without a key and without `insecure`, for an empty key, and
        for an origin that is none. The Host header is checked where no key is needed and only this machine connects.
        """
        local = is_loopback(host)
        if not (api_keys or insecure or local):
            raise ConfigError(
                f"--host {host} can be reached from other machines, and no key protects it: give --api-key-file FILE "
                "(or set ADAPTSPEC_API_KEY), or say --insecure if anybody who reaches it may use it"
            )
        return cls(
            api_keys,
            admin_key,
            hosts=AllowedHosts(allowed_hosts) if local and not api_keys else None,
            origins=AllowedOrigins(allowed_origins) if allowed_origins else None,
        )


def authentication(access: Access) -> Any:
    """A middleware: the admin key for `/admin/`, an API key (where there are any) for all routes but `OPEN`.

    The name of an API key goes into the request as `KEY_NAME`. Compressed bodies are refused: inflating a few bytes can
    take seconds.
    """

    @web.middleware
    async def authenticate(http: web.Request, handler: Handler) -> web.StreamResponse:
        _check_coding(http)
        if access.hosts is not None:
            access.hosts.check(http)
        route = await _route(http)
        if route is None:
            return await handler(http)  # it raises 404
        if route.startswith(ADMIN):
            if not access.admin_keys.name_of_key(http.headers):
                raise _unauthorised("the admin key")
        elif route not in OPEN and access.api_keys:
            name = access.api_keys.name_of_key(http.headers)
            if name is None:
                raise _unauthorised("an API key of this server")
            http[KEY_NAME] = name
        return await handler(http)

    return authenticate


async def _route(http: web.Request) -> str | None:
    """The pattern of the route of a path, for a method that it does not have, too; None if the path has no route."""
    match = http.match_info
    if isinstance(match.http_exception, web.HTTPMethodNotAllowed):
        match = await http.app.router.resolve(http.clone(method=min(match.http_exception.allowed_methods)))
    resource = match.route.resource
    return None if resource is None else resource.canonical


def _check_coding(http: web.Request) -> None:
    for header in ("Content-Encoding", "Transfer-Encoding"):
        codings = ",".join(http.headers.getall(header, ())).split(",")
        if not all(coding.strip().lower() in _UNCHANGED for coding in codings):
            message = f"this server takes no compressed bodies; send it as it is, without {header}"
            code = "unsupported_content_encoding"
            raise RefusedError(415, code, message, Connection="close", Accept_Encoding="identity")


def _unauthorised(key: str) -> RefusedError:
    message = f"this needs {key}: send it as Authorization: Bearer KEY"
    return RefusedError(401, "invalid_api_key", message, WWW_Authenticate="Bearer")


def named_key(line: str) -> tuple[str, str | None]:
    """The key of a line such as `KEY # NAME`, as in files of SSH keys, and its name, by which policies may select it.

    A `#` at the beginning of a line or behind a space begins a comment. The key is empty in a line without one.
    """
    key, *name = _COMMENT.split(line.strip(), maxsplit=1)
    return key.strip(), (name[0].strip() or None) if name and key else None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server on `host`: an address, or a name all of whose addresses are local."""
    try:
        found = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return False  # listening on it will fail, with a message
    addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)
