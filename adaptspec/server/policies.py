"""The routes about policies: those that clients may name; with the admin key those that run, changing them, draining.

`auth` decides who may use them.
"""

from __future__ import annotations

import asyncio
import re
from typing import Literal

from aiohttp import web
from pydantic import RootModel

from adaptspec.engine.policy_manager import PolicyManager, ServedPolicy
from adaptspec.errors import ConfigError, RequestError, UnknownModelError
from adaptspec.server.api.fields import Json, quoted
from adaptspec.server.api.outputs import Answer, Listed
from adaptspec.server.errors import RefusedError
from adaptspec.server.generation import GENERATION
from adaptspec.server.routes import Operation

POLICIES = web.AppKey("policies", PolicyManager)
_SOURCE = "<body>"  # what locations in errors begin with
_LOCATION = re.compile(rf"{_SOURCE}:(\d+):(\d+): ")


class PolicyCard(Answer):
    """A policy that requests may name."""

    id: str
    object: Literal["policy"]
    description: str
    default: bool


class PolicyText(PolicyCard):
    """A policy that requests may name, with its YAML."""

    yaml: str


class PolicyList(Listed[PolicyCard]):
    """All policies that requests may name."""


class RunningPolicy(PolicyText):
    """A policy that runs; `mode` is live or canary."""

    mode: str


class RunningPolicies(Listed[RunningPolicy]):
    """All policies that run."""


class AppliedPolicy(Answer):
    """A policy that is served from the next round on.

    `replaced`: another one had its name. `carried`: the new one goes on with the learned state of that one.
    """

    name: str
    replaced: bool
    carried: bool


class PolicyProblem(Answer):
    """One fault of a policy. Line and column, from 1, are null where the fault has no position in the text."""

    line: int | None
    column: int | None
    message: str


class CheckedPolicy(Answer):
    """The result of a dry run. `name` is null where `problems` were found; `replaces`: a policy of its name runs."""

    valid: bool
    name: str | None
    replaces: bool
    problems: list[PolicyProblem]


class PostedPolicy(RootModel[AppliedPolicy | CheckedPolicy]):
    """The result of sending a policy; the second after a dry run."""


class DeletedPolicy(Answer):
    """A policy that new requests no longer use."""

    name: str
    deleted: Literal[True]


class ReloadedFile(Answer):
    """The file of a policy: reloaded, unchanged (no error), or not usable."""

    name: str
    reloaded: bool
    error: str | None


class ReloadedFiles(Listed[ReloadedFile]):
    """All policies that have a file."""


class Draining(Answer):
    """Whether new requests are refused, and how many are in flight."""

    draining: bool
    running: int
    waiting: int


class ResetState(Answer):
    """The policies whose learned state was reset."""

    reset: list[str]


@Operation("get", "/v1/policies", answer=PolicyList)
async def list_policies(http: web.Request) -> web.Response:
    """Policies that requests may name."""
    manager = http.app[POLICIES]
    cards = [PolicyCard(**_card(policy, manager.default)) for policy in manager.served]
    return web.json_response(PolicyList(object="list", data=cards).written())


@Operation("get", "/v1/policies/{policy}", answer=PolicyText, refused=(404,))
async def get_policy(http: web.Request) -> web.Response:
    """A policy that requests may name, with its YAML."""
    manager, name = http.app[POLICIES], http.match_info["policy"]
    for policy in manager.served:
        if policy.name == name:
            return web.json_response(PolicyText(**_card(policy, manager.default), yaml=policy.text).written())
    message = f"there is no policy {quoted(name)} here; GET /v1/policies lists those that are served"
    raise RefusedError(404, "policy_not_found", message)


@Operation("get", "/admin/policies", answer=RunningPolicies)
async def list_running(http: web.Request) -> web.Response:
    """All policies that run."""
    manager = http.app[POLICIES]
    running = [
        RunningPolicy(**_card(policy, manager.default), mode=policy.mode, yaml=policy.text) for policy in manager.served
    ]
    return web.json_response(RunningPolicies(object="list", data=running).written())


@Operation("post", "/admin/policies", answer=PostedPolicy, policy=True, dry_run=True)
async def post_policy(http: web.Request) -> web.Response:
    """Serve a policy from the next round on, in place of the one with the same name, if there is one.

    With dry_run=true it is only checked, and the answer lists its problems. 400 beyond 64 policies.
    """
    manager, dry_run = http.app[POLICIES], http.query.get("dry_run", "false")
    if dry_run not in ("true", "false"):  # a client that writes True wants no change, and must not get one
        raise RequestError(f"dry_run is {quoted(dry_run)}; it must be true or false", "dry_run")
    try:
        text = (await http.read()).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8 text (byte {error.start}); send a policy as YAML") from error
    if dry_run == "true":
        return web.json_response((await _check(manager, text)).written())
    try:
        # It waits for a round to end; the event loop has streams to serve meanwhile.
        applied = await asyncio.to_thread(manager.apply, text, _SOURCE)
    except ConfigError as error:
        raise RequestError(str(error)) from error
    return web.json_response(AppliedPolicy.model_validate(applied, from_attributes=True).written())


@Operation("delete", "/admin/policies/{name}", answer=DeletedPolicy, refused=(404, 409))
async def delete_policy(http: web.Request) -> web.Response:
    """Stop serving a policy to new requests.

    Running requests keep it. 409 for the default policy, and for one that the default's `when:` uses.
    """
    name = http.match_info["name"]
    try:
        await asyncio.to_thread(http.app[POLICIES].remove, name)
    except UnknownModelError as error:
        message = f"there is no policy {quoted(name)} here; GET /admin/policies lists what there is"
        raise RefusedError(404, "policy_not_found", message) from error
    except ConfigError as error:
        raise RefusedError(409, "policy_in_use", str(error)) from error
    return web.json_response(DeletedPolicy(name=name, deleted=True).written())


@Operation("post", "/admin/policies/reload", answer=ReloadedFiles)
async def reload_files(http: web.Request) -> web.Response:
    """Read the files of all policies again."""
    outcomes = await asyncio.to_thread(http.app[POLICIES].reload)
    files = [ReloadedFile.model_validate(outcome) for outcome in outcomes]
    return web.json_response(ReloadedFiles(object="list", data=files).written())


@Operation("post", "/admin/state/reset", answer=ResetState)
async def reset_state(http: web.Request) -> web.Response:
    """Reset what every policy has learned."""
    names = await asyncio.to_thread(http.app[POLICIES].forget)
    return web.json_response(ResetState(reset=names).written())


@Operation("post", "/admin/drain", answer=Draining)
async def drain(http: web.Request) -> web.Response:
    """Refuse new requests from now on."""
    return _draining(http, True)


@Operation("delete", "/admin/drain", answer=Draining, refused=(409,))
async def end_draining(http: web.Request) -> web.Response:
    """Take requests again.

    409 once a signal has begun to stop the server.
    """
    if http.app[GENERATION].stopping:
        message = "a signal stops the server, which takes no more requests; send them to its successor"
        raise RefusedError(409, "server_stopping", message)
    return _draining(http, False)


async def _check(manager: PolicyManager, text: str) -> CheckedPolicy:
    try:
        name = await asyncio.to_thread(manager.check, text, _SOURCE)
    except ConfigError as error:
        problems = [_problem(line) for line in str(error).splitlines()]
        return CheckedPolicy(valid=False, name=None, replaces=False, problems=problems)
    replaces = name in {policy.name for policy in manager.served}
    return CheckedPolicy(valid=True, name=name, replaces=replaces, problems=[])


def _problem(line: str) -> PolicyProblem:
    """One line of an error's message."""
    location = _LOCATION.match(line)
    if location is None:
        return PolicyProblem(line=None, column=None, message=line)
    return PolicyProblem(line=int(location[1]), column=int(location[2]), message=line[location.end() :])


def _draining(http: web.Request, draining: bool) -> web.Response:
    service = http.app[GENERATION]
    service.draining = draining
    return web.json_response(Draining(draining=draining, **service.load).written())


def _card(policy: ServedPolicy, default: str) -> Json:
    return {
        "id": policy.name,
        "object": "policy",
        "description": policy.description,
        "default": policy.name == default,
    }


USER_ROUTES = (list_policies, get_policy)
ADMIN_ROUTES = (list_running, post_policy, delete_policy, reload_files, reset_state, drain, end_draining)
