"""Puts the app together: routes, middleware, limits."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from aiohttp import web

from adaptspec.server import admin, handlers, status, tokens, trials
from adaptspec.server.codec import Codec
from adaptspec.server.counting import counting
from adaptspec.server.exposure import Hosts
from adaptspec.server.gate import gate
from adaptspec.server.keys import Keys, named_key
from adaptspec.server.limits import ServerLimits
from adaptspec.server.live import add_live
from adaptspec.server.live_page import add_page
from adaptspec.server.openapi import KEYED, openapi
from adaptspec.server.operations import OPERATIONS, Operations, operation_routes
from adaptspec.server.padding import Padding
from adaptspec.server.problem import problems, shape_refusal
from adaptspec.server.protocols import AsyncEngine, Exposition, Policies, Tokenizer, Tracing
from adaptspec.server.request_id import add_request_id
from adaptspec.server.service import SERVICE, Service
from adaptspec.server.traces import tracing
from adaptspec.telemetry.live_feed import LiveFeed


def make_app(
    engine: AsyncEngine,
    tokenizer: Tokenizer,
    exposition: Exposition,
    *,
    policies: Policies | None = None,
    traces: Tracing | None = None,
    admin_key: str | None = None,
    api_keys: Collection[str] = (),
    hosts: Hosts | None = None,
    limits: ServerLimits = ServerLimits(),
    padding: Padding | None = None,
    operations: Operations | None = None,
    live: LiveFeed | None = None,
    facts: Mapping[str, Any] = MappingProxyType({}),
    journal: Path | None = None,
) -> web.Application:
    """The app for an engine that runs. `exposition` is what `/metrics` shows, and counts answers.

    `policies` adds the routes about them; those that change something exist only with an `admin_key`. `traces` None:
    nothing is traced. With `api_keys`, only who has one of them is served. `hosts` are the names it may be called by,
    None for any. `padding` hides in streams what speculation did, and leaves out the live feed. `operations` adds the
    admin routes about the server as it runs, which need an `admin_key` and `policies` as well. `live` adds the live
    feed and its page, with `facts` about the server. `journal` is what policies are tried on.

    Serve it with `adaptspec.server.run.serve`, or with a runner that has `handler_cancellation=True`: that is what
    aborts a request whose client has gone.
    """
    guard = gate(Keys(map(named_key, api_keys)), Keys([(admin_key, None)] if admin_key else []), hosts)
    around = [] if traces is None else [tracing(traces)]
    middlewares = [*around, counting(exposition.responded), problems, guard]
    app = web.Application(middlewares=middlewares, client_max_size=limits.body_bytes)
    target, longest = engine.target, limits.text_bytes(engine.target.context)
    codec = Codec(tokenizer, target.vocab_size, limits.template_seconds, longest)
    app[SERVICE] = Service(engine, codec, limits, padding)
    app[status.EXPOSITION] = exposition
    app[status.STARTED] = int(time.time())
    app[KEYED] = bool(api_keys)
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
            web.get("/ready", status.ready),
            web.get("/version", status.version),
            web.get("/metrics", status.metrics),
            web.get("/openapi.json", openapi),
        ]
    )
    if policies is not None:
        app[admin.POLICIES] = policies
        app[trials.TRIALS] = trials.Trials(journal)
        app.add_routes(admin.policy_routes(admin=bool(admin_key)))
        if admin_key:
            app.add_routes(trials.trial_routes())
        if operations is not None and admin_key:
            app[OPERATIONS] = operations
            app.add_routes(operation_routes())
    # What padding hides the feed would tell to all who have a key.
    if live is not None and padding is None:
        add_live(app, live, facts)
        add_page(app)
    return app
