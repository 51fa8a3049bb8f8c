"""The handlers that only look: models, health, version, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from adaptspec import __version__
from adaptspec.server.protocols import Exposition
from adaptspec.server.service import SERVICE, Service

EXPOSITION = web.AppKey("exposition", Exposition)
STARTED = web.AppKey("started", int)


async def models(http: web.Request) -> web.Response:
    """GET /v1/models."""
    return web.json_response({"object": "list", "data": [_card(http.app[SERVICE], http.app[STARTED])]})


async def model(http: web.Request) -> web.Response:
    """GET /v1/models/{model}."""
    service = http.app[SERVICE]
    service.check_model(http.match_info["model"])
    return web.json_response(_card(service, http.app[STARTED]))


async def health(http: web.Request) -> web.Response:
    """GET /health: 200 while the engine lives, 503 when only a restart helps. For whoever restarts."""
    return _state(http, well=("ok", "draining", "full"))


async def ready(http: web.Request) -> web.Response:
    """GET /ready: 200 while a request sent now would be taken, 503 otherwise. For whoever sends requests."""
    return _state(http, well=("ok",))


def _state(http: web.Request, well: Sequence[str]) -> web.Response:
    service = http.app[SERVICE]
    state = "full" if service.state == "ok" and service.full else service.state
    return web.json_response({"status": state, **service.load}, status=200 if state in well else 503)


async def version(http: web.Request) -> web.Response:  # noqa: ARG001 (aiohttp passes the request)
    """GET /version."""
    return web.json_response({"version": __version__})


async def metrics(http: web.Request) -> web.Response:
    """GET /metrics, for Prometheus."""
    # It waits for what was not counted yet: milliseconds, which the event loop is spared.
    body, content_type = await asyncio.to_thread(http.app[EXPOSITION].render, http.headers.get("Accept", ""))
    return web.Response(body=body, headers={"Content-Type": content_type})


def _card(service: Service, started: int) -> dict[str, Any]:
    target = service.engine.target
    return {
        "id": target.name,
        "object": "model",
        "created": started,
        "owned_by": "adaptspec",
        "max_model_len": target.context,
        "adaptspec": {
            "architecture": target.architecture,
            "parameters": target.parameters,
            "policies": list(service.engine.policies),
            "default_policy": service.engine.default_policy,
        },
    }
