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


async def requests(http: web.Request) -> web.Response:
    """GET /admin/requests: what runs, and what was decided for it in its last rounds, and why."""
    operations = http.app[OPERATIONS]
    found = await asyncio.to_thread(operations.decisions.requests, operations.drafters)
    return web.json_response(DecidedRequests.model_validate({"object": "list", "data": found}).written())


async def drain(http: web.Request) -> web.Response:
    """POST /admin/drain: new requests are refused from now on, those in flight go on; `DELETE` takes it back."""
    http.app[SERVICE].draining = True
    return _draining(http)


async def resume(http: web.Request) -> web.Response:
    """DELETE /admin/drain: take requests again."""
    http.app[SERVICE].draining = False
    return _draining(http)


async def save(http: web.Request) -> web.Response:
    """POST /admin/state/save: write down what was learned, now."""
    keeper = http.app[OPERATIONS].keeper
    if keeper is None:
        raise RequestError("nothing is kept by this server; start it with --state-dir DIR")
    saved = await asyncio.to_thread(keeper.save)
    if not saved:
        raise RequestError("it could not be written; the server's log says why")
    return web.json_response(SavedState(saved=True).written())


async def reset(http: web.Request) -> web.Response:
    """POST /admin/state/reset: every policy learns anew, from the next round on."""
    names = await asyncio.to_thread(http.app[POLICIES].forget)
    return web.json_response(ResetState(reset=names).written())


def _draining(http: web.Request) -> web.Response:
    service = http.app[SERVICE]
    return web.json_response(Draining(draining=service.draining, **service.load).written())


ROUTES = (
    web.get("/admin/requests", requests),
    web.post("/admin/drain", drain),
    web.delete("/admin/drain", resume),
    web.post("/admin/state/save", save),
    web.post("/admin/state/reset", reset),
)
