"""Keys that open routes, compared in a time that says nothing about them. Knows no route and no file."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from aiohttp import web

_SCHEME = b"bearer "


class Keys:
    """Any number of keys; none means that there is nothing to open."""

    def __init__(self, keys: Iterable[str]) -> None:
        # Of one length each: comparing the keys themselves would take longer for those of the right length.
        self._digests = tuple(_digest(key.encode("utf-8", "surrogateescape")) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def admit(self, http: web.Request) -> bool:
        """Whether the request brings one of the keys, as `Authorization: Bearer KEY`.

        The header is compared as bytes, whatever they are, with every key there is.
        """
        # aiohttp reads headers as UTF-8 and keeps what is not; this gives the client's bytes again.
        given = http.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        digest = _digest(given[len(_SCHEME) :] if given[: len(_SCHEME)].lower() == _SCHEME else b"")
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(digest, known)
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
