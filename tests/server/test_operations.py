"""The admin routes about the server as it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from adaptspec.server.application import make_app
from adaptspec.server.operations import Operations
from adaptspec.telemetry.metrics import Metrics
from adaptspec.telemetry.request_store import RequestStore
from tests.server.test_admin import BEARER, KEY, FakeDesk

Client = TestClient[web.Request, web.Application]


class Keeper:
    saved, works = 0, True

    def save(self) -> bool:
        self.saved += 1
        return self.works


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


@pytest.fixture
def desk() -> FakeDesk:
    return FakeDesk()


@pytest.fixture
async def admin(engine: Any, tokenizer: Any, keeper: Keeper, desk: FakeDesk) -> AsyncIterator[Client]:
    operations = Operations(keeper, RequestStore(), ["ngram"])
    app = make_app(engine, tokenizer, Metrics(), policies=desk, admin_key=KEY, operations=operations)
    async with TestClient(TestServer(app), headers=BEARER) as client:
        yield client


async def ask(client: Client, method: str, path: str, **more: Any) -> tuple[int, Any]:
    async with client.request(method, path, **more) as response:
        return response.status, await response.json()


async def test_draining_refuses_what_is_new_and_can_be_taken_back(admin: Client) -> None:
    """Not ready, but alive: whoever restarts dead servers must leave it alone."""
    assert (await ask(admin, "POST", "/admin/drain"))[1]["draining"] is True
    status, body = await ask(admin, "POST", "/v1/completions", json={"prompt": "x"})
    assert (status, body["error"]["code"]) == (503, "draining")
    assert (await ask(admin, "GET", "/ready"))[0] == 503
    assert (await ask(admin, "GET", "/health"))[0] == 200
    assert (await ask(admin, "DELETE", "/admin/drain"))[1]["draining"] is False
    assert (await ask(admin, "POST", "/v1/completions", json={"prompt": "x", "max_tokens": 1}))[0] == 200


async def test_what_was_learned_is_saved_and_forgotten(admin: Client, keeper: Keeper, desk: FakeDesk) -> None:
    assert await ask(admin, "POST", "/admin/state/save") == (200, {"saved": True})
    keeper.works = False
    assert (await ask(admin, "POST", "/admin/state/save"))[0] == 400
    assert keeper.saved == 2
    assert await ask(admin, "POST", "/admin/state/reset") == (200, {"reset": ["main", "new"]})


async def test_policies_are_looked_at_and_put_by_name(admin: Client, desk: FakeDesk) -> None:
    """A dry run changes nothing; a name that is not the policy's own is refused."""
    assert (await ask(admin, "GET", "/admin/policies/new"))[1]["mode"] == "canary"
    assert (await ask(admin, "GET", "/admin/policies/nope"))[0] == 404
    assert await ask(admin, "PUT", "/admin/policies/new?dry_run=true", data=b"x") == (
        200,
        {"name": "new", "valid": True},
    )
    assert not desk.sent
    assert (await ask(admin, "PUT", "/admin/policies/other", data=b"x"))[0] == 400
    assert (await ask(admin, "PUT", "/admin/policies/new", data=b"x"))[1]["name"] == "new"
    assert desk.sent == [("x", "<body>")]
    outcomes = (await ask(admin, "POST", "/admin/policies/reload"))[1]["data"]
    assert outcomes == [{"name": "main", "reloaded": True, "error": None}]
