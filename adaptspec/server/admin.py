"""The routes about policies: what users may ask for, and with the admin key what runs, and changing it.

`auth` decides who may come here.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from aiohttp import web
from pydantic import RootModel

from adaptspec.engine.policy_manager import PolicyManager, ServedPolicy
from adaptspec.errors import ConfigError, RequestError, UnknownModelError
from adaptspec.server.api.answers import Answer, Json, Listed
from adaptspec.server.api.wire import shown
from adaptspec.server.http_errors import RefusedError
from adaptspec.server.routes import Operation

POLICIES = web.AppKey("policies", PolicyManager)
# What is done with policies has paths of its own, and no other methods than it says.
_BY_NAME = "/admin/policies/{name:(?!(?:reload|simulate|validate)$)[^/]+}"


class PolicyCard(Answer):
    """A policy that requests may name."""

    id: str
    object: Literal["policy"]
    description: str
    default: bool


class PolicyText(PolicyCard):
    """The same, with its YAML."""

    yaml: str


class PolicyList(Listed[PolicyCard]):
    """All of them."""


class RunningPolicy(PolicyText):
    """A policy that runs; `mode` is live or canary."""

    mode: str


class RunningPolicies(Listed[RunningPolicy]):
    """All of them."""


class AppliedPolicy(Answer):
    """What became of a policy that was sent."""

    name: str
    replaced: bool
    carried: bool


class DryRun(Answer):
    """A policy that could be served, and is not."""

    name: str
    valid: Literal[True]


class PutPolicy(RootModel[AppliedPolicy | DryRun]):
    """What became of a policy; the second after a dry run."""


class DeletedPolicy(Answer):
    """A policy that requests can no longer come to."""

    name: str
    deleted: Literal[True]


class ReloadedFile(Answer):
    """What became of a policy's file: reloaded, unchanged (no error), or not usable."""

    name: str
    reloaded: bool
    error: str | None


class ReloadedFiles(Listed[ReloadedFile]):
    """All policies that have a file."""


@Operation("get", "/v1/policies", answer=PolicyList)
async def policies(http: web.Request) -> web.Response:
    """Policies that requests may name."""
    manager = http.app[POLICIES]
    cards = [PolicyCard(**_card(one, manager.default)) for one in manager.served]
    return web.json_response(PolicyList(object="list", data=cards).written())


@Operation("get", "/v1/policies/{policy}", answer=PolicyText, refused=(404,))
async def policy(http: web.Request) -> web.Response:
    """A policy that requests may name, as YAML too."""
    manager, name = http.app[POLICIES], http.match_info["policy"]
    for one in manager.served:
        if one.name == name:
            return web.json_response(PolicyText(**_card(one, manager.default), yaml=one.text).written())
    raise web.HTTPNotFound


@Operation("get", "/admin/policies", answer=RunningPolicies)
async def running(http: web.Request) -> web.Response:
    """All policies that run."""
    return web.json_response(RunningPolicies(object="list", data=_running(http.app[POLICIES])).written())


@Operation("get", _BY_NAME, answer=RunningPolicy, refused=(404,))
async def one(http: web.Request) -> web.Response:
    """One policy that runs."""
    name = http.match_info["name"]
    for card in _running(http.app[POLICIES]):
        if card.id == name:
            return web.json_response(card.written())
    raise _unknown(name)


@Operation("post", "/admin/policies", answer=AppliedPolicy, policy=True)
async def apply(http: web.Request) -> web.Response:
    """Serve a policy from the next round on.

    400 beyond 64 policies, unless the server was started with another limit.
    """
    return await _apply(http, await body_text(http))


@Operation("put", _BY_NAME, answer=PutPolicy, policy=True, dry_run=True)
async def put(http: web.Request) -> web.Response:
    """Serve a policy under its name.

    With dry_run=true it is only looked at. It must be sent under the name that its metadata gives.
    """
    text, name = await body_text(http), http.match_info["name"]
    dry_run = http.query.get("dry_run", "false")
    if dry_run not in ("true", "false"):  # whoever writes True wants no change, and must not get one
        raise RequestError(f"dry_run is {shown(dry_run)}; it must be true or false", "dry_run")
    found = await checked_name(http, text)
    if found != name:
        raise RequestError(f"the policy is called {shown(found)}, not {shown(name)}; send it under its metadata.name")
    if dry_run == "true":
        return web.json_response(DryRun(name=name, valid=True).written())
    return await _apply(http, text)


@Operation("delete", _BY_NAME, answer=DeletedPolicy, refused=(404, 409))
async def delete(http: web.Request) -> web.Response:
    """Serve a policy no longer.

    Requests that have come to it keep it. 409 for the default, or one that its `when:` uses.
    """
    name = http.match_info["name"]
    try:
        await asyncio.to_thread(http.app[POLICIES].remove, name)
    except UnknownModelError as error:
        raise _unknown(name) from error
    except ConfigError as error:
        raise RefusedError(409, "policy_in_use", str(error)) from error
    return web.json_response(DeletedPolicy(name=name, deleted=True).written())


@Operation("post", "/admin/policies/reload", answer=ReloadedFiles)
async def reload(http: web.Request) -> web.Response:
    """Read the files of all policies again."""
    outcomes = await asyncio.to_thread(http.app[POLICIES].reload)
    found = ReloadedFiles(object="list", data=[ReloadedFile.model_validate(outcome) for outcome in outcomes])
    return web.json_response(found.written())


async def body_text(http: web.Request) -> str:
    """The body as text. Raises RequestError."""
    try:
        return (await http.read()).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8 text (byte {error.start}); send a policy as YAML") from error


async def checked_name(http: web.Request, text: str) -> str:
    """The name of a policy that could be served. Raises RequestError."""
    try:
        return await asyncio.to_thread(http.app[POLICIES].check, text, "<body>")
    except ConfigError as error:
        raise RequestError(str(error)) from error


async def _apply(http: web.Request, text: str) -> web.Response:
    try:
        # It waits for a round to end; the loop has streams to serve meanwhile.
        applied = await asyncio.to_thread(http.app[POLICIES].apply, text, "<body>")
    except ConfigError as error:
        raise RequestError(str(error)) from error
    return web.json_response(AppliedPolicy.model_validate(applied, from_attributes=True).written())


def _unknown(name: str) -> RefusedError:
    words = f"there is no policy {shown(name)} here; GET /admin/policies lists what there is"
    return RefusedError(404, "policy_not_found", words)


def _running(manager: PolicyManager) -> list[RunningPolicy]:
    return [
        RunningPolicy(**_card(policy, manager.default), mode=policy.mode, yaml=policy.text) for policy in manager.served
    ]


def _card(policy: ServedPolicy, default: str) -> Json:
    return {
        "id": policy.name,
        "object": "policy",
        "description": policy.description,
        "default": policy.name == default,
    }


USER_ROUTES = (policies, policy)
ADMIN_ROUTES = (running, apply, reload, one, put, delete)
