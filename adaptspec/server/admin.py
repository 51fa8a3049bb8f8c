"""The routes about policies: what users may ask for, and with the admin key what runs, and changing it.

Knows HTTP and the policy desk; it does not know what makes a policy good. Who may come here is `gate`'s affair.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from adaptspec.errors import ConfigError, RequestError
from adaptspec.server.protocols import Policies, ServedPolicy

POLICIES = web.AppKey("policies", Policies)


def policy_routes(admin: bool) -> list[web.RouteDef]:
    """The routes; those that need the admin key only where there is one."""
    routes = [web.get("/v1/policies", policies)]
    if admin:
        routes += [web.get("/admin/policies", running), web.post("/admin/policies", apply)]
    return routes


async def policies(http: web.Request) -> web.Response:
    """GET /v1/policies: what a request may name."""
    desk = http.app[POLICIES]
    cards = [_card(policy, desk.default) for policy in desk.on_request()]
    return web.json_response({"object": "list", "data": cards})


async def running(http: web.Request) -> web.Response:
    """GET /admin/policies: everything that runs, as YAML too, and what shadows would have earned."""
    desk = http.app[POLICIES]
    estimates = {estimate.policy: estimate for estimate in desk.estimates()}
    data = []
    for policy in desk.served:
        card = {**_card(policy, desk.default), "mode": policy.mode, "yaml": policy.text}
        estimate = estimates.get(policy.name)
        if estimate is not None:
            card["estimate"] = {
                "against": estimate.against,
                "rounds": estimate.rounds,
                "goodput_ratio": estimate.goodput_ratio,
                "guessed": estimate.guessed,
            }
        data.append(card)
    return web.json_response({"object": "list", "data": data})


async def apply(http: web.Request) -> web.Response:
    """POST /admin/policies: the body is a policy as YAML; it serves from the next round on."""
    try:
        text = (await http.read()).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8 text (byte {error.start}); send a policy as YAML") from error
    try:
        # It waits for a round to end; the loop has streams to serve meanwhile.
        applied = await asyncio.to_thread(http.app[POLICIES].apply, text, "<body>")
    except ConfigError as error:
        raise RequestError(str(error)) from error
    return web.json_response({"name": applied.name, "replaced": applied.replaced, "carried": applied.carried})


def _card(policy: ServedPolicy, default: str) -> dict[str, Any]:
    return {
        "id": policy.name,
        "object": "policy",
        "description": policy.description,
        "default": policy.name == default,
    }
