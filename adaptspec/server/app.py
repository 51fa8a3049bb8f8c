"""The application: its routes, and the middleware around them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from aiohttp import web
from transformers import PreTrainedTokenizerFast

from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.policy_manager import PolicyManager
from adaptspec.models.chat.chat_template import ChatTemplate
from adaptspec.server import limits, status
from adaptspec.server import policies as policy_routes
from adaptspec.server.api import chat, completions, responses, tokenize
from adaptspec.server.api.fields import WarningLog
from adaptspec.server.api.reasoning import reasoning_format
from adaptspec.server.api.reasoning_formats import AUTO, FormatName
from adaptspec.server.auth import Access, authentication
from adaptspec.server.cors import cors, sharing
from adaptspec.server.errors import error_responses, shape_refusal
from adaptspec.server.generation import GENERATION, Generation
from adaptspec.server.live import add_live
from adaptspec.server.live_page import add_page
from adaptspec.server.middleware import add_request_id, counting, tracing
from adaptspec.server.prompts import Prompts
from adaptspec.server.routes import KEYED, add_operations, openapi
from adaptspec.server.served_names import ServedNames
from adaptspec.server.threads import THREADS, SizeClassExecutor
from adaptspec.telemetry.live_feed import LiveFeed
from adaptspec.telemetry.metrics import Metrics
from adaptspec.telemetry.tracer import Tracer


def make_app(
    engine: AsyncEngine,
    tokenizer: PreTrainedTokenizerFast,
    metrics: Metrics,
    *,
    access: Access | None = None,
    policies: PolicyManager | None = None,
    traces: Tracer | None = None,
    live: LiveFeed | None = None,
    facts: Mapping[str, Any] = MappingProxyType({}),
    template: ChatTemplate | None = None,
    reasoning: FormatName = AUTO,
    names: ServedNames | None = None,
) -> web.Application:
    """The application for an engine that runs. `metrics` is shown by `/metrics`, and counts answers.

    `access` None: everybody who reaches it may use it, and there are no admin routes. `policies` adds the routes about
    them, those of the administrator with an admin key. `live` adds the live feed and its page, with `facts` about the
    server. `template` None: the tokenizer's. `reasoning`: how the model marks its reasoning. `names` None: the model's.

    Serve it with `adaptspec.server.listener.serve_app`, or with a runner that has `handler_cancellation=True`: that
    aborts a request whose client has gone.
    """
    access = access or Access()
    app = web.Application(middlewares=_middlewares(access, metrics, traces), client_max_size=limits.BODY_BYTES)
    app[THREADS] = threads = SizeClassExecutor()
    prompts = Prompts(tokenizer, engine.target.context, template, threads)
    marks, log = reasoning_format(reasoning, prompts.template), WarningLog(metrics.warned)
    app[GENERATION] = Generation(engine, prompts, warning_log=log, names=names, reasoning=marks)
    app[status.METRICS] = metrics
    app[status.STARTED] = int(time.time())
    app[KEYED] = bool(access.api_keys)
    app.on_response_prepare.extend((shape_refusal, add_request_id))
    if access.origins is not None:
        app.on_response_prepare.append(sharing(access.origins))
    add_operations(
        app, (*chat.ROUTES, *completions.ROUTES, *responses.ROUTES, *tokenize.ROUTES, *status.ROUTES, openapi)
    )
    if policies is not None:
        app[policy_routes.POLICIES] = policies
        add_operations(app, policy_routes.USER_ROUTES)
        if access.admin_keys:
            add_operations(app, policy_routes.ADMIN_ROUTES)
    if live is not None:
        add_live(app, live, facts)
        add_page(app)
    return app


def _middlewares(access: Access, metrics: Metrics, traces: Tracer | None) -> list[Any]:
    """From the outermost on: counts and traces see the status that error responses have made of an error."""
    outermost = [] if traces is None else [tracing(traces)]
    preflights = [] if access.origins is None else [cors(access.origins)]
    return [*outermost, counting(metrics.responded), *preflights, error_responses, authentication(access)]
