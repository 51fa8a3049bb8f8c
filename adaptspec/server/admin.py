"""The routes about policies: what users may ask for, and with the admin key what runs, and changing it.

Knows HTTP and the policy desk; it does not know what makes a policy good.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import Any

from aiohttp import web

from adaptspec.errors import ConfigError, RequestError
from adaptspec.server.errors import AdminKeyError
from adaptspec.server.protocols import Policies, ServedPolicy

POLICIES = web.AppKey("policies", Policies)
ADMIN_KEY = web.AppKey("admin_key", str)
_SCHEME = "Bearer "


def policy_routes(admin: bool) -> list[web.RouteDef]:
    """The routes; those that need the admin key only where there is one."""
    routes = [web.get("/v1/policies", policies), web.get("/v1/policies/{policy}", policy)]
    if admin:
        routes += [web.get("/admin/policies", running), web.post("/admin/policies", apply)]
    return routes


async def policies(http: web.Request) -> web.Response:
    """GET /v1/policies: what a request may name."""
    desk = http.app[POLICIES]
    cards = [_card(one, desk.default) for one in desk.on_request()]
    return web.json_response({"object": "list", "data": cards})


async def policy(http: web.Request) -> web.Response:
    """GET /v1/policies/{policy}: one of them, as YAML too."""
    desk, name = http.app[POLICIES], http.match_info["policy"]
    for one in desk.on_request():
        if one.name == name:
            return web.json_response(_card(one, desk.default) | {"yaml": one.text})
    raise web.HTTPNotFound


async def running(http: web.Request) -> web.Response:
    """GET /admin/policies: everything that runs, as YAML too, and what shadows would have earned."""
    check_key(http)
    desk = http.app[POLICIES]
    estimates = {estimate.policy: estimate for estimate in desk.estimates()}
    data = []
    for one in desk.served:
        card = {**_card(one, desk.default), "mode": one.mode, "yaml": one.text}
        estimate = estimates.get(one.name)
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
    check_key(http)
    text = await body_text(http)
    try:
        # It waits for a round to end; the loop has streams to serve meanwhile.
        applied = await asyncio.to_thread(http.app[POLICIES].apply, text, "<body>")
    except ConfigError as error:
        raise RequestError(str(error)) from error
    return web.json_response({"name": applied.name, "replaced": applied.replaced, "carried": applied.carried})


async def body_text(http: web.Request) -> str:
    """The body as text. Raises RequestError."""
    try:
        return (await http.read()).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8 text (byte {error.start}); send a policy as YAML") from error


def check_key(http: web.Request) -> None:
    """Raise AdminKeyError unless the request brings the admin key; takes the same time for all wrong ones."""
    given = http.headers.get("Authorization", "")
    key = given.removeprefix(_SCHEME) if given.startswith(_SCHEME) else ""
    if not hmac.compare_digest(key.encode("utf-8", "surrogateescape"), http.app[ADMIN_KEY].encode()):
        raise AdminKeyError("this needs the admin key: send it as Authorization: Bearer KEY")


def _card(policy: ServedPolicy, default: str) -> dict[str, Any]:
    return {
        "id": policy.name,
        "object": "policy",
        "description": policy.description,
        "default": policy.name == default,
    }
