"""The routes that show the server: models, health, version, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from aiohttp import web

from adaptspec import __version__
from adaptspec.server.api.outputs import Answer, Listed
from adaptspec.server.generation import GENERATION, Generation
from adaptspec.server.routes import Operation
from adaptspec.telemetry.metrics import Metrics

METRICS = web.AppKey("metrics", Metrics)
STARTED = web.AppKey("started", int)


class ModelDetails(Answer):
    """What AdaptSpec adds to a model's card. `dtype` is that of the weights.

    `equal_passes`: at the start, a token's logits had equal bits in passes of 1 to this many tokens. 0: they had not,
    so texts with and without speculation may differ where two tokens are nearly equally likely.
    """

    architecture: str
    parameters: int
    dtype: str
    equal_passes: int
    policies: list[str]
    default_policy: str


class Model(Answer):
    """The served model under one of its names. `root` is the first name, which answers have."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int
    adaptspec: ModelDetails


class ModelList(Listed[Model]):
    """All names of the model that is served."""


class Version(Answer):
    """The version of AdaptSpec."""

    version: str


class Health(Answer):
    """Whether requests are taken, and how many are in flight."""

    status: Literal["ok", "draining", "full", "dead"]
    running: int
    waiting: int


@Operation("get", "/v1/models", answer=ModelList)
async def models(http: web.Request) -> web.Response:
    """The served model, under each of its names."""
    service, started = http.app[GENERATION], http.app[STARTED]
    found = ModelList(object="list", data=[_card(service, name, started) for name in service.names.names])
    return web.json_response(found.written())


@Operation("get", "/v1/models/{model:.+}", answer=Model, refused=(404,))
async def model(http: web.Request) -> web.Response:
    """The model by its name."""
    service, name = http.app[GENERATION], http.match_info["model"]
    service.names.check(name)
    return web.json_response(_card(service, name, http.app[STARTED]).written())


@Operation("get", "/health", answer=Health, also=(503,))  # for supervisors, which restart a server
async def health(http: web.Request) -> web.Response:
    """Whether the engine lives.

    503 when only a restart helps.
    """
    return _state(http, ok=("ok", "draining", "full"))


@Operation("get", "/ready", answer=Health, also=(503,))  # for load balancers
async def ready(http: web.Request) -> web.Response:
    """Whether requests are taken.

    503 when draining, full or dead.
    """
    return _state(http, ok=("ok",))


@Operation("get", "/version", answer=Version)
async def version(http: web.Request) -> web.Response:  # noqa: ARG001 (aiohttp passes the request)
    """The version of AdaptSpec."""
    return web.json_response(Version(version=__version__).written())


@Operation("get", "/metrics", plain=("text/plain", "application/openmetrics-text"))
async def metrics(http: web.Request) -> web.Response:
    """Metrics for Prometheus."""
    # Counting the latest rounds takes milliseconds, so it does not run on the event loop.
    body, content_type = await asyncio.to_thread(http.app[METRICS].render, http.headers.get("Accept", ""))
    return web.Response(body=body, headers={"Content-Type": content_type})


def _state(http: web.Request, ok: Sequence[str]) -> web.Response:
    service = http.app[GENERATION]
    state: Any = "full" if service.state == "ok" and service.is_full else service.state
    return web.json_response(Health(status=state, **service.load).written(), status=200 if state in ok else 503)


def _card(service: Generation, name: str, started: int) -> Model:
    engine, target = service.engine, service.engine.target
    details = ModelDetails(
        architecture=target.architecture,
        parameters=target.parameters,
        dtype=target.dtype,
        equal_passes=target.equal_passes or 0,
        policies=list(engine.policies),
        default_policy=engine.default_policy,
    )
    return Model(
        id=name,
        object="model",
        created=started,
        owned_by="adaptspec",
        root=target.name,
        parent=None,
        max_model_len=target.context,
        adaptspec=details,
    )


ROUTES = (models, model, health, ready, version, metrics)
