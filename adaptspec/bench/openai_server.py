"""Requests to a server of OpenAI's API that is compared with."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from http.client import HTTPResponse
from typing import Any
from urllib.error import HTTPError

SHOWN = 500  # characters of an error that a server answers with


def server_root(url: str) -> str:
    """The address that `/v1/...` is added to."""
    return url.rstrip("/").removesuffix("/v1")


def opened(url: str, body: Mapping[str, Any] | None = None, *, seconds: float) -> HTTPResponse:
    """The response to a GET, or to a POST of `body` as JSON. Raises OSError, and HTTPError for a status above 299."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    response: HTTPResponse = urllib.request.urlopen(request, timeout=seconds)
    return response


def first_model(root: str, *, seconds: float) -> dict[str, Any]:
    """What a server says of its first model. Raises OSError, ValueError, LookupError, TypeError."""
    with opened(f"{root}/v1/models", seconds=seconds) as answer:
        model: dict[str, Any] = json.load(answer)["data"][0]
    str(model["id"])
    return model


def error_text(error: HTTPError) -> str:
    """The beginning of what a server says of an error."""
    return error.read()[:SHOWN].decode(errors="replace")
