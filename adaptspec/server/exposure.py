"""Who can reach the server: which addresses stay on this machine, and which names a browser may call it by.

Knows addresses and the Host header; it does not know keys or routes.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection

from aiohttp import web

from adaptspec.errors import ConfigError
from adaptspec.server.errors import HostError


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
    if keyed or insecure or is_loopback(host):
        return
    raise ConfigError(
        f"--host {host} can be reached from other machines, and no key protects it: give --api-key-file FILE (or set "
        "ADAPTSPEC_API_KEY), or say --insecure if anybody who reaches it may use it"
    )


class Hosts:
    """Names by which a server without keys may be called.

    A web page whose own name was made to point to this machine (DNS rebinding) is told apart by its Host header: it is
    a name, where programs on this machine say localhost or an address. Addresses are always allowed: no page is served
    from one that its browser did not really connect to.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(name.lower().rstrip(".") for name in names) | {"localhost"}

    def check(self, http: web.Request) -> None:
        """Raise HostError for a name that is not known. No Host at all is no browser."""
        given = http.headers.get("Host", "")
        name = _name(given)
        if not given or name in self._names or name.endswith(".localhost") or _is_address(name):
            return
        raise HostError(
            "this server answers to localhost and to addresses; start it with --allow-host NAME to call it by another "
            "name, or with an API key"
        )


def _name(host: str) -> str:
    """A Host header without its port."""
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
