"""The x-request-id header: a client's own, made harmless and echoed; else ours."""

from __future__ import annotations

import re
import uuid

from aiohttp import web

HEADER = "x-request-id"
MAX_LENGTH = 128
_UNSAFE = re.compile(r"[^A-Za-z0-9._:/+=@-]")


def sanitised(supplied: str) -> str:
    """What of a client's id is safe to put in headers and logs."""
    return _UNSAFE.sub("", supplied[: 4 * MAX_LENGTH])[:MAX_LENGTH]


async def add_request_id(http: web.Request, response: web.StreamResponse) -> None:
    """A response-prepare signal. The client's id wins over the one a handler has set."""
    if own := sanitised(http.headers.get(HEADER, "")):
        response.headers[HEADER] = own
    else:
        response.headers.setdefault(HEADER, f"req-{uuid.uuid4().hex}")
