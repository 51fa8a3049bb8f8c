"""Keys that open routes, compared in a time that says nothing about them. Knows no route and no file.

A key may have a name, which policies can go by: `KEY # NAME`, as in files of SSH keys.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from aiohttp import web

_SCHEME = b"bearer "
KEY_NAME = web.RequestKey("key_name", str)


class Keys:
    """Any number of keys; none means that there is nothing to open."""

    def __init__(self, keys: Iterable[tuple[str, str | None]]) -> None:
        """`keys` with their names, if they have any (see `named_key`)."""
        # Of one length each: comparing the keys themselves would take longer for those of the right length.
        self._digests = tuple((_digest(key.encode("utf-8", "surrogateescape")), name) for key, name in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def admit(self, http: web.Request) -> bool:
        """Whether the request brings one of the keys, as `Authorization: Bearer KEY`.

        The header is compared as bytes, whatever they are, with every key there is. The name of the key that it brings
        is put into the request as `KEY_NAME`.
        """
        # aiohttp reads headers as UTF-8 and keeps what is not; this gives the client's bytes again.
        given = http.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        digest = _digest(given[len(_SCHEME) :] if given[: len(_SCHEME)].lower() == _SCHEME else b"")
        found = False
        for known, name in self._digests:
            same = hmac.compare_digest(digest, known)
            if same and name is not None:
                http[KEY_NAME] = name
            found |= same
        return found


def named_key(line: str) -> tuple[str, str | None]:
    """A key and its name, of a line such as `KEY # NAME`."""
    key, _, name = line.partition(" # ")
    return key.strip(), name.strip() or None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
