"""The admin routes about the server as it runs: what it learned, draining it, and what it decides just now.

Knows HTTP and who to ask; who may come here is `gate`'s affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from adaptspec.errors import RequestError
from adaptspec.server.admin import POLICIES
from adaptspec.server.protocols import Decisions, Keeper
from adaptspec.server.service import SERVICE


@dataclass(frozen=True)
class Operations:
    """Whom to ask. `keeper` None: what is learned is kept nowhere."""

    keeper: Keeper | None
    decisions: Decisions
    drafters: Sequence[str]


OPERATIONS = web.AppKey("operations", Operations)


def operation_routes() -> list[web.RouteDef]:
    """The routes."""
    return [
        web.get("/admin/requests", requests),
        web.post("/admin/drain", drain),
        web.delete("/admin/drain", resume),
        web.post("/admin/state/save", save),
        web.post("/admin/state/reset", reset),
    ]


async def requests(http: web.Request) -> web.Response:
    """GET /admin/requests: what runs, and what was decided for it in its last rounds, and why."""
    operations = http.app[OPERATIONS]
    data = await asyncio.to_thread(operations.decisions.requests, operations.drafters)
    return web.json_response({"object": "list", "data": data})


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
    return web.json_response({"saved": True})


async def reset(http: web.Request) -> web.Response:
    """POST /admin/state/reset: every policy learns anew, from the next round on."""
    names = await asyncio.to_thread(http.app[POLICIES].forget)
    return web.json_response({"reset": list(names)})


def _draining(http: web.Request) -> web.Response:
    service = http.app[SERVICE]
    return web.json_response({"draining": service.draining, **service.load})
