"""The routes about policies: what users may ask for, and with the admin key what runs, and changing it.

Knows HTTP and the policy desk; it does not know what makes a policy good. Who may come here is `gate`'s affair.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from adaptspec.errors import ConfigError, RequestError, UnknownModelError
from adaptspec.server.errors import PolicyInUseError, UnknownPolicyError
from adaptspec.server.protocols import Policies, ServedPolicy
from adaptspec.server.wire import shown

POLICIES = web.AppKey("policies", Policies)
# What is done with policies has paths of its own, and no other methods than it says.
_BY_NAME = "/admin/policies/{name:(?!(?:reload|simulate|validate)$)[^/]+}"


def policy_routes(admin: bool) -> list[web.RouteDef]:
    """The routes; those that need the admin key only where there is one."""
    routes = [web.get("/v1/policies", policies), web.get("/v1/policies/{policy}", policy)]
    if admin:
        routes += [
            web.get("/admin/policies", running),
            web.post("/admin/policies", apply),
            web.post("/admin/policies/reload", reload),
            web.get(_BY_NAME, one),
            web.put(_BY_NAME, put),
            web.delete(_BY_NAME, delete),
        ]
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
    return web.json_response({"object": "list", "data": _whole_cards(http.app[POLICIES])})


async def one(http: web.Request) -> web.Response:
    """GET /admin/policies/{name}: the same of one policy."""
    name = http.match_info["name"]
    for card in _whole_cards(http.app[POLICIES]):
        if card["id"] == name:
            return web.json_response(card)
    raise _unknown(name)


async def apply(http: web.Request) -> web.Response:
    """POST /admin/policies: the body is a policy as YAML; it serves from the next round on."""
    return await _apply(http, await body_text(http))


async def put(http: web.Request) -> web.Response:
    """PUT /admin/policies/{name}: the same under this name; with `?dry_run=true` it is looked at, and not served."""
    text, name = await body_text(http), http.match_info["name"]
    dry_run = http.query.get("dry_run", "false")
    if dry_run not in ("true", "false"):  # whoever writes True wants no change, and must not get one
        raise RequestError(f"dry_run is {shown(dry_run)}; it must be true or false", "dry_run")
    try:
        found = http.app[POLICIES].check(text, "<body>")
    except ConfigError as error:
        raise RequestError(str(error)) from error
    if found != name:
        raise RequestError(f"the policy is called {shown(found)}, not {shown(name)}; send it under its metadata.name")
    if dry_run == "true":
        return web.json_response({"name": name, "valid": True})
    return await _apply(http, text)


async def delete(http: web.Request) -> web.Response:
    """DELETE /admin/policies/{name}: no request comes to it any more; those that have come keep it to their end."""
    name = http.match_info["name"]
    try:
        await asyncio.to_thread(http.app[POLICIES].remove, name)
    except UnknownModelError as error:
        raise _unknown(name) from error
    except ConfigError as error:
        raise PolicyInUseError(str(error)) from error
    return web.json_response({"name": name, "deleted": True})


async def reload(http: web.Request) -> web.Response:
    """POST /admin/policies/reload: read all policy files again. One that cannot be used leaves its policy as it is."""
    outcomes = await asyncio.to_thread(http.app[POLICIES].reload)
    return web.json_response({"object": "list", "data": [dict(outcome) for outcome in outcomes]})


async def body_text(http: web.Request) -> str:
    """The body as text. Raises RequestError."""
    try:
        return (await http.read()).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8 text (byte {error.start}); send a policy as YAML") from error


async def _apply(http: web.Request, text: str) -> web.Response:
    try:
        # It waits for a round to end; the loop has streams to serve meanwhile.
        applied = await asyncio.to_thread(http.app[POLICIES].apply, text, "<body>")
    except ConfigError as error:
        raise RequestError(str(error)) from error
    return web.json_response({"name": applied.name, "replaced": applied.replaced, "carried": applied.carried})


def _unknown(name: str) -> UnknownPolicyError:
    return UnknownPolicyError(f"there is no policy {shown(name)} here; GET /admin/policies lists what there is")


def _whole_cards(desk: Policies) -> list[dict[str, Any]]:
    estimates = {estimate.policy: estimate for estimate in desk.estimates()}
    cards = []
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
        cards.append(card)
    return cards


def _card(policy: ServedPolicy, default: str) -> dict[str, Any]:
    return {
        "id": policy.name,
        "object": "policy",
        "description": policy.description,
        "default": policy.name == default,
    }
