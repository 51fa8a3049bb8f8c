"""The handlers that only look: models, health, version, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from aiohttp import web

from adaptspec import __version__
from adaptspec.server.api.answers import Answer, Listed
from adaptspec.server.service import SERVICE, Service
from adaptspec.telemetry.metrics import Metrics

EXPOSITION = web.AppKey("exposition", Metrics)
STARTED = web.AppKey("started", int)


class ModelDetails(Answer):
    """What AdaptSpec adds to a model's card."""

    architecture: str
    parameters: int
    policies: list[str]
    default_policy: str


class Model(Answer):
    """The model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    adaptspec: ModelDetails


class ModelList(Listed[Model]):
    """All models that are served."""


class Version(Answer):
    """The version of AdaptSpec."""

    version: str


class Health(Answer):
    """Whether requests are taken, and how many are in flight."""

    status: Literal["ok", "draining", "full", "dead"]
    running: int
    waiting: int


async def models(http: web.Request) -> web.Response:
    """GET /v1/models."""
    found = ModelList(object="list", data=[_card(http.app[SERVICE], http.app[STARTED])])
    return web.json_response(found.written())


async def model(http: web.Request) -> web.Response:
    """GET /v1/models/{model}."""
    service = http.app[SERVICE]
    service.check_model(http.match_info["model"])
    return web.json_response(_card(service, http.app[STARTED]).written())


async def health(http: web.Request) -> web.Response:
    """GET /health: 200 while the engine lives, 503 when only a restart helps. For whoever restarts."""
    return _state(http, well=("ok", "draining", "full"))


async def ready(http: web.Request) -> web.Response:
    """GET /ready: 200 while a request sent now would be taken, 503 otherwise. For whoever sends requests."""
    return _state(http, well=("ok",))


async def version(http: web.Request) -> web.Response:  # noqa: ARG001 (aiohttp passes the request)
    """GET /version."""
    return web.json_response(Version(version=__version__).written())


async def metrics(http: web.Request) -> web.Response:
    """GET /metrics, for Prometheus."""
    # It waits for what was not counted yet: milliseconds, which the event loop is spared.
    body, content_type = await asyncio.to_thread(http.app[EXPOSITION].render, http.headers.get("Accept", ""))
    return web.Response(body=body, headers={"Content-Type": content_type})


def _state(http: web.Request, well: Sequence[str]) -> web.Response:
    service = http.app[SERVICE]
    state: Any = "full" if service.state == "ok" and service.full else service.state
    return web.json_response(Health(status=state, **service.load).written(), status=200 if state in well else 503)


def _card(service: Service, started: int) -> Model:
    engine, target = service.engine, service.engine.target
    details = ModelDetails(
        architecture=target.architecture,
        parameters=target.parameters,
        policies=list(engine.policies),
        default_policy=engine.default_policy,
    )
    return Model(
        id=target.name,
        object="model",
        created=started,
        owned_by="adaptspec",
        max_model_len=target.context,
        adaptspec=details,
    )
