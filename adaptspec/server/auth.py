"""Who may use the server: keys, the names a browser may call it by, and addresses that strangers can reach.

What is open is decided by the route that was matched, never by the path as it was written: no encoding, slash or
method leads around it, and what leads nowhere is as closed as the rest.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Collection, Iterable
from typing import Any

from aiohttp import web

from adaptspec.errors import ConfigError
from adaptspec.server.http_errors import Handler, RefusedError

# The page's files hold no data: it asks its reader for the key that all it shows needs.
OPEN = frozenset({"/health", "/ready", "/", "/dashboard", "/page/{name}"})
ADMIN = "/admin/"
KEY_NAME = web.RequestKey("key_name", str)
_UNCHANGED = frozenset({"", "identity", "chunked"})  # codings that leave a body as it is
_SCHEME = b"bearer "
_COMMENT = re.compile(r"(?:^|\s)#")


def auth(api: Keys, admin: Keys, hosts: Hosts | None) -> Any:
    """A middleware: the admin key for `/admin/`, an API key (where there are any) for all but `OPEN`.

    `hosts` None: it may be called by any name. Compressed bodies are refused: unpacking a few bytes can take seconds.
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
                raise _unauthorised("the admin key")
        elif place not in OPEN and api and not api.admit(http):
            raise _unauthorised("an API key of this server")
        return await handler(http)

    return check


def _check_coding(http: web.Request) -> None:
    for header in ("Content-Encoding", "Transfer-Encoding"):
        codings = ",".join(http.headers.getall(header, ())).split(",")
        if not all(coding.strip().lower() in _UNCHANGED for coding in codings):
            words = f"this server takes no compressed bodies; send it as it is, without {header}"
            code = "unsupported_content_encoding"
            raise RefusedError(415, code, words, Connection="close", Accept_Encoding="identity")


def _unauthorised(key: str) -> RefusedError:
    words = f"this needs {key}: send it as Authorization: Bearer KEY"
    return RefusedError(401, "invalid_api_key", words, WWW_Authenticate="Bearer")


class Keys:
    """Any number of keys, compared in a time that says nothing about them; none: there is nothing to open."""

    def __init__(self, keys: Iterable[tuple[str, str | None]]) -> None:
        """`keys` with their names, if they have any (see `named_key`). Raises ConfigError for an empty one.

        A key without a name goes by its digest, since requests of one key share cached prompts and histories.
        """
        keys = list(keys)
        if not all(key for key, _ in keys):
            raise ConfigError("an API key is empty; leave it out, or give one")
        # Of one length each: comparing the keys themselves would take longer for those of the right length.
        digests = [(_digest(key.encode("utf-8", "surrogateescape")), name) for key, name in keys]
        self._names = {digest: name or f"sha256:{digest.hex()[:16]}" for digest, name in digests}

    def __bool__(self) -> bool:
        return bool(self._names)

    def admit(self, http: web.Request) -> bool:
        """Whether the request brings a key, as `Authorization: Bearer KEY`; its name goes into it as `KEY_NAME`."""
        # aiohttp reads headers as UTF-8 and keeps what is not; this gives the client's bytes again.
        given = http.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        digest = _digest(given[len(_SCHEME) :] if given[: len(_SCHEME)].lower() == _SCHEME else b"")
        found = [name for known, name in self._names.items() if hmac.compare_digest(digest, known)]
        http.update((KEY_NAME, name) for name in found)
        return bool(found)


def named_key(line: str) -> tuple[str, str | None]:
    """A key and its name, which policies can go by, of a line such as `KEY # NAME`, as in files of SSH keys.

    A `#` at the beginning of a line or behind a space begins a comment. The key is empty where there is nothing else.
    """
    key, *name = _COMMENT.split(line.strip(), maxsplit=1)
    return key.strip(), (name[0].strip() or None) if name and key else None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class Hosts:
    """Names by which a server without keys may be called.

    A web page whose own name was made to point to this machine (DNS rebinding) is told apart by its Host header: it is
    a name, where programs on this machine say localhost or an address. Addresses are always allowed: no page is served
    from one that its browser did not really connect to.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(name.lower().rstrip(".") for name in names) | {"localhost"}

    def check(self, http: web.Request) -> None:
        """Raise RefusedError for a name that is not known. No Host at all is no browser."""
        given = http.headers.get("Host", "")
        name = _without_port(given)
        if not given or name in self._names or name.endswith(".localhost") or _is_address(name):
            return
        raise RefusedError(
            403,
            "host_not_allowed",
            "this server answers to localhost and to addresses; start it with --allow-host NAME to call it by another "
            "name, or with an API key",
        )


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
    """Whether only this machine reaches what listens on `host`: an address, or a name all of whose addresses do."""
    try:
        found = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return False  # listening on it will fail, and say so
    addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)


def check_exposure(host: str, *, keyed: bool, insecure: bool) -> None:
    """Raise ConfigError where strangers could use the server without a key, and nobody has said that they may."""
    if not (keyed or insecure or is_loopback(host)):
        raise ConfigError(
            f"--host {host} can be reached from other machines, and no key protects it: give --api-key-file FILE (or "
            "set ADAPTSPEC_API_KEY), or say --insecure if anybody who reaches it may use it"
        )
