"""Puts the app together: routes, middleware, limits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from aiohttp import web

from adaptspec.server import admin, handlers, status, tokens, trials
from adaptspec.server.codec import Codec
from adaptspec.server.counting import counting
from adaptspec.server.live import add_live
from adaptspec.server.live_page import add_page
from adaptspec.server.problem import problems, shape_refusal
from adaptspec.server.protocols import AsyncEngine, Exposition, Policies, Tokenizer, Tracing
from adaptspec.server.request_id import add_request_id
from adaptspec.server.service import SERVICE, Service
from adaptspec.server.traces import tracing
from adaptspec.telemetry.live import LiveFeed

MAX_BODY_BYTES = 4 * 2**20


def make_app(
    engine: AsyncEngine,
    tokenizer: Tokenizer,
    exposition: Exposition,
    *,
    policies: Policies | None = None,
    traces: Tracing | None = None,
    admin_key: str | None = None,
    live: LiveFeed | None = None,
    facts: Mapping[str, Any] = MappingProxyType({}),
    journal: Path | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> web.Application:
    """The app for an engine that runs. `exposition` is what `/metrics` shows, and counts answers.

    `policies` adds the routes about them; those that change something need an `admin_key`. Without `traces` none begin.
    `live` adds the live feed and its page, with `facts` about the server. `journal` is what policies are tried on.

    Serve it with `adaptspec.server.run.serve`, or with a runner that has `handler_cancellation=True`: that is what
    aborts a request whose client has gone.
    """
    around = [] if traces is None else [tracing(traces)]
    middlewares = [*around, counting(exposition.responded), problems]
    app = web.Application(middlewares=middlewares, client_max_size=max_body_bytes)
    app[SERVICE] = Service(engine, Codec(tokenizer, engine.target.vocab_size))
    app[status.EXPOSITION] = exposition
    app[status.STARTED] = int(time.time())
    app.on_response_prepare.extend((shape_refusal, add_request_id))
    app.add_routes(
        [
            web.post("/v1/completions", handlers.completions),
            web.post("/v1/chat/completions", handlers.chat_completions),
            web.get("/v1/models", status.models),
            web.get("/v1/models/{model:.+}", status.model),
            web.post("/tokenize", tokens.tokenize),
            web.post("/detokenize", tokens.detokenize),
            web.get("/health", status.health),
            web.get("/version", status.version),
            web.get("/metrics", status.metrics),
        ]
    )
    if policies is not None:
        app[admin.POLICIES] = policies
        app[admin.ADMIN_KEY] = admin_key or ""
        app[trials.TRIALS] = trials.Trials(journal)
        app.add_routes(admin.policy_routes(admin=bool(admin_key)))
        if admin_key:
            app.add_routes(trials.trial_routes())
    if live is not None:
        add_live(app, live, facts)
        add_page(app)
    return app
