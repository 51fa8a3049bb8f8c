"""The admin routes about the server as it runs: what it learned, draining it, and what it decides just now."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from aiohttp import web

from adaptspec.engine.checkpointer import Checkpointer
from adaptspec.errors import RequestError
from adaptspec.server.admin import POLICIES
from adaptspec.server.api.answers import Answer, Listed
from adaptspec.server.routes import Operation
from adaptspec.server.service import SERVICE
from adaptspec.telemetry.request_store import RequestStore


class Decision(Answer):
    """What was decided for one round of a request, why, and what came of it; no drafter at depth 0."""

    round: int
    depth: int
    reason: str
    drafter: str | None
    drafted: int
    accepted: int
    emitted: int
    nodes: int


class DecidedRequest(Answer):
    """A request that runs, and its last rounds, oldest first. Never its text."""

    id: str
    policy: str | None
    task: str | None
    task_detected: bool
    prompt_tokens: int
    max_tokens: int
    rounds: list[Decision]


class DecidedRequests(Listed[DecidedRequest]):
    """All of them."""


class Draining(Answer):
    """Whether new requests are refused, and how many are in flight."""

    draining: bool
    running: int
    waiting: int


class SavedState(Answer):
    """What was learned is on disk."""

    saved: Literal[True]


class ResetState(Answer):
    """The policies that learn anew."""

    reset: list[str]


@dataclass(frozen=True)
class Operations:
    """Whom to ask. `keeper` None: what is learned is kept nowhere."""

    keeper: Checkpointer | None
    decisions: RequestStore
    drafters: Sequence[str]


OPERATIONS = web.AppKey("operations", Operations)


@Operation("get", "/admin/requests", answer=DecidedRequests)
async def requests(http: web.Request) -> web.Response:
    """Requests that run, and what was decided for them."""
    operations = http.app[OPERATIONS]
    found = await asyncio.to_thread(operations.decisions.requests, operations.drafters)
    return web.json_response(DecidedRequests.model_validate({"object": "list", "data": found}).written())


@Operation("post", "/admin/drain", answer=Draining)
async def drain(http: web.Request) -> web.Response:
    """Refuse new requests from now on."""
    return _draining(http, True)


@Operation("delete", "/admin/drain", answer=Draining)
async def resume(http: web.Request) -> web.Response:
    """Take requests again."""
    return _draining(http, False)


@Operation("post", "/admin/state/save", answer=SavedState, refused=(400,))
async def save(http: web.Request) -> web.Response:
    """Write down what was learned.

    400 where the server keeps nothing, or it could not be written.
    """
    keeper = http.app[OPERATIONS].keeper
    if keeper is None:
        raise RequestError("nothing is kept by this server; start it with --state-dir DIR")
    saved = await asyncio.to_thread(keeper.save)
    if not saved:
        raise RequestError("it could not be written; the server's log says why")
    return web.json_response(SavedState(saved=True).written())


@Operation("post", "/admin/state/reset", answer=ResetState)
async def reset(http: web.Request) -> web.Response:
    """Have every policy learn anew."""
    names = await asyncio.to_thread(http.app[POLICIES].forget)
    return web.json_response(ResetState(reset=names).written())


def _draining(http: web.Request, draining: bool) -> web.Response:
    service = http.app[SERVICE]
    service.draining = draining
    return web.json_response(Draining(draining=draining, **service.load).written())


ROUTES = (requests, drain, resume, save, reset)
