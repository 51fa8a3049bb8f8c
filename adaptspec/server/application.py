"""Puts the app together: routes, middleware, limits."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from aiohttp import web
from transformers import PreTrainedTokenizerFast

from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.policy_manager import PolicyManager
from adaptspec.models.chat.chat_template import ChatTemplate
from adaptspec.server import admin, status, trials
from adaptspec.server import operations as operating
from adaptspec.server.api import handlers, tokenize
from adaptspec.server.api.codec import Codec
from adaptspec.server.api.reasoning import reasoning_format
from adaptspec.server.api.reasoning_formats import AUTO, FormatName
from adaptspec.server.api.warnings import WarningLog
from adaptspec.server.auth import Hosts, Keys, auth, named_key
from adaptspec.server.cors import Origins, cors, sharing
from adaptspec.server.http_errors import answer_errors, shape_refusal
from adaptspec.server.limits import ServerLimits
from adaptspec.server.live import add_live
from adaptspec.server.live_page import add_page
from adaptspec.server.middleware import add_request_id, counting, tracing
from adaptspec.server.openapi import KEYED, openapi
from adaptspec.server.operations import Operations
from adaptspec.server.routes import add_operations
from adaptspec.server.served_names import ServedNames
from adaptspec.server.service import SERVICE, Service
from adaptspec.server.sse import Padding
from adaptspec.telemetry.live_feed import LiveFeed
from adaptspec.telemetry.metrics import Metrics
from adaptspec.telemetry.tracing import Tracing


def make_app(
    engine: AsyncEngine,
    tokenizer: PreTrainedTokenizerFast,
    exposition: Metrics,
    *,
    policies: PolicyManager | None = None,
    traces: Tracing | None = None,
    admin_key: str | None = None,
    api_keys: Collection[str] = (),
    hosts: Hosts | None = None,
    origins: Origins | None = None,
    limits: ServerLimits = ServerLimits(),
    padding: Padding | None = None,
    operations: Operations | None = None,
    live: LiveFeed | None = None,
    facts: Mapping[str, Any] = MappingProxyType({}),
    journal: Path | None = None,
    template: ChatTemplate | None = None,
    reasoning: FormatName = AUTO,
    names: ServedNames | None = None,
) -> web.Application:
    """The app for an engine that runs. `exposition` is what `/metrics` shows, and counts answers.

    `policies` adds the routes about them; those that change something exist only with an `admin_key`. `traces` None:
    nothing is traced. With `api_keys`, only who has one of them is served. `hosts` are the names it may be called by,
    None for any; web pages of `origins` may call it from a browser. `padding` hides in streams what speculation did,
    and leaves out the live feed. `operations` adds the admin routes about the server as it runs, which need an
    `admin_key` and `policies` as well. `live` adds the live feed and its page, with `facts` about the server. `journal`
    is what policies are tried on. `template` None: the tokenizer's own writes chats. `reasoning` says how a
    model marks its reasoning. `names` are those of the model, None for its own.

    Serve it with `adaptspec.server.run.serve`, or with a runner that has `handler_cancellation=True`: that is what
    aborts a request whose client has gone.
    """
    guard = auth(Keys(map(named_key, api_keys)), Keys([(admin_key, None)] if admin_key else []), hosts)
    middlewares = [counting(exposition.responded), answer_errors, guard]
    if origins is not None:
        middlewares.insert(1, cors(origins))
    if traces is not None:
        middlewares.insert(0, tracing(traces))
    app = web.Application(middlewares=middlewares, client_max_size=limits.body_bytes)
    context = engine.target.context
    codec = Codec(tokenizer, limits.template_seconds, limits.text_bytes(context), context, template)
    marks, log = reasoning_format(reasoning, codec.template), WarningLog(exposition.warned)
    app[SERVICE] = Service(engine, codec, limits, padding=padding, warning_log=log, names=names, reasoning=marks)
    app[status.EXPOSITION] = exposition
    app[status.STARTED] = int(time.time())
    app[KEYED] = bool(api_keys)
    app.on_response_prepare.extend((shape_refusal, add_request_id))
    if origins is not None:
        app.on_response_prepare.append(sharing(origins))
    add_operations(app, (*handlers.ROUTES, *status.ROUTES, *tokenize.ROUTES, openapi))
    if policies is not None:
        app[admin.POLICIES] = policies
        add_operations(app, admin.USER_ROUTES)
    if policies is not None and admin_key:
        app[trials.TRIALS] = trials.Trials(journal)
        add_operations(app, (*admin.ADMIN_ROUTES, *trials.ROUTES))
        if operations is not None:
            app[operating.OPERATIONS] = operations
            add_operations(app, operating.ROUTES)
    # What padding hides the feed would tell to all who have a key.
    if live is not None and padding is None:
        add_live(app, live, facts)
        add_page(app)
    return app
