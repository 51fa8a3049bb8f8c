"""Puts the app together: routes, middleware, limits."""

from __future__ import annotations

import time

from aiohttp import web

from adaptspec.server import admin, handlers, status, tokens
from adaptspec.server.codec import Codec
from adaptspec.server.counting import counting
from adaptspec.server.openapi import openapi
from adaptspec.server.problem import problems, shape_refusal
from adaptspec.server.protocols import AsyncEngine, Exposition, Policies, Tokenizer
from adaptspec.server.request_id import add_request_id
from adaptspec.server.service import SERVICE, Service

MAX_BODY_BYTES = 4 * 2**20


def make_app(
    engine: AsyncEngine,
    tokenizer: Tokenizer,
    exposition: Exposition,
    *,
    policies: Policies | None = None,
    admin_key: str | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> web.Application:
    """The app for an engine that runs. `exposition` is what `/metrics` shows, and counts answers.

    `policies` adds the routes about them; those that change something exist only with an `admin_key`.

    Serve it with `adaptspec.server.run.serve`, or with a runner that has `handler_cancellation=True`: that is what
    aborts a request whose client has gone.
    """
    app = web.Application(middlewares=[counting(exposition.responded), problems], client_max_size=max_body_bytes)
    app[SERVICE] = Service(engine, Codec(tokenizer, engine.target.vocab_size))
    app[status.EXPOSITION] = exposition
    app[status.STARTED] = int(time.time())
    app.on_response_prepare.extend((shape_refusal, add_request_id))
    app.add_routes(
        [
            web.post("/v1/completions", handlers.completions),
            web.post("/v1/chat/completions", handlers.chat_completions),
            web.post("/v1/responses", handlers.responses),
            web.get("/v1/models", status.models),
            web.get("/v1/models/{model:.+}", status.model),
            web.post("/tokenize", tokens.tokenize),
            web.post("/detokenize", tokens.detokenize),
            web.get("/health", status.health),
            web.get("/version", status.version),
            web.get("/metrics", status.metrics),
            web.get("/openapi.json", openapi),
        ]
    )
    if policies is not None:
        app[admin.POLICIES] = policies
        app[admin.ADMIN_KEY] = admin_key or ""
        app.add_routes(admin.policy_routes(admin=bool(admin_key)))
    return app
