"""The routes about policies: who may see and change what, and what an answer says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from adaptspec.errors import ConfigError, EngineError, PolicyError, UnknownModelError
from adaptspec.server.application import make_app
from adaptspec.telemetry.metrics import Metrics

KEY = "pass phrase"
BEARER = {"Authorization": f"Bearer {KEY}"}


@dataclass(frozen=True)
class Policy:
    name: str
    mode: str = "live"
    description: str = "what it is for"
    text: str = "spec: {}"
    path: Path | None = None


@dataclass(frozen=True)
class Applied:
    name: str
    replaced: bool = True
    carried: bool = False


@dataclass
class FakeDesk:
    """Keeps what it was sent; refuses what it is told to."""

    served: tuple[Policy, ...] = (Policy("main"), Policy("new", "canary"))
    default: str = "main"
    sent: list[tuple[str, str]] = field(default_factory=list)
    refusal: Exception | None = None

    def check(self, text: str, source: str) -> str:
        if self.refusal is not None:
            raise self.refusal
        return text if text in ("main", "fresh") else "new"

    def apply(self, text: str, source: str) -> Applied:
        self.sent.append((text, source))
        if self.refusal is not None:
            raise self.refusal
        return Applied("new")

    def remove(self, name: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        if name not in {policy.name for policy in self.served}:
            raise UnknownModelError("there is no such policy")
        self.served = tuple(policy for policy in self.served if policy.name != name)

    def reload(self) -> list[dict[str, Any]]:
        return [{"name": "main", "reloaded": True, "error": None}]

    def forget(self) -> list[str]:
        return [policy.name for policy in self.served]


@pytest.fixture
def desk() -> FakeDesk:
    return FakeDesk()


Client = TestClient[web.Request, web.Application]


@pytest.fixture
async def admin(engine: Any, tokenizer: Any, desk: FakeDesk) -> AsyncIterator[Client]:
    app = make_app(engine, tokenizer, Metrics(), policies=desk, admin_key=KEY)
    async with TestClient(TestServer(app)) as client:
        yield client


async def test_users_see_what_they_may_ask_for(admin: Client) -> None:
    """Names, descriptions and the default; no YAML, no key needed."""
    async with admin.get("/v1/policies") as response:
        body = await response.json()
    assert response.status == 200
    assert body["data"] == [
        {"id": "main", "object": "policy", "description": "what it is for", "default": True},
        {"id": "new", "object": "policy", "description": "what it is for", "default": False},
    ]


async def test_the_admin_sees_everything_that_runs(admin: Client) -> None:
    """Modes and YAML."""
    async with admin.get("/admin/policies", headers=BEARER) as response:
        body = await response.json()
    assert [(policy["id"], policy["mode"], policy["yaml"]) for policy in body["data"]] == [
        ("main", "live", "spec: {}"),
        ("new", "canary", "spec: {}"),
    ]


async def test_a_policy_is_sent_as_yaml(admin: Client, desk: FakeDesk) -> None:
    """Whatever content type a tool gives it; the key is what protects the route."""
    for headers in ({}, {"Content-Type": "application/yaml"}):
        async with admin.post("/admin/policies", data="näme: x".encode(), headers=BEARER | headers) as response:
            assert response.status == 200
            assert await response.json() == {"name": "new", "replaced": True, "carried": False}
    assert desk.sent == [("näme: x", "<body>")] * 2


async def test_what_cannot_be_used_is_answered_with_its_place(admin: Client, desk: FakeDesk) -> None:
    """400 with the located message; a dead engine is a server error."""
    desk.refusal = PolicyError("<body>:3:1: spec: unknown key")
    async with admin.post("/admin/policies", data=b"x", headers=BEARER) as response:
        assert response.status == 400
        assert (await response.json())["error"]["message"] == "<body>:3:1: spec: unknown key"
    desk.refusal = EngineError("the engine has stopped")
    async with admin.post("/admin/policies", data=b"x", headers=BEARER) as response:
        assert response.status == 500
    async with admin.post("/admin/policies", data=b"\xff\xfe", headers=BEARER) as response:
        assert response.status == 400
        assert "UTF-8" in (await response.json())["error"]["message"]
    assert len(desk.sent) == 2


@pytest.mark.parametrize("key", [None, ""])
async def test_without_an_admin_key_there_are_no_admin_routes(
    engine: Any, tokenizer: Any, desk: FakeDesk, key: str | None
) -> None:
    """An empty key must not be a key that everybody knows."""
    app = make_app(engine, tokenizer, Metrics(), policies=desk, admin_key=key)
    async with TestClient(TestServer(app)) as client:
        for headers in ({}, {"Authorization": "Bearer "}):
            async with client.post("/admin/policies", data=b"x", headers=headers) as response:
                assert response.status == 404
        async with client.get("/v1/policies") as response:
            assert response.status == 200


async def test_streams_go_on_while_a_policy_waits_for_its_round(admin: Client, desk: FakeDesk) -> None:
    """The desk may block; the event loop must not."""
    loop, released = asyncio.get_running_loop(), asyncio.Event()

    def apply(text: str, source: str) -> Applied:
        asyncio.run_coroutine_threadsafe(released.wait(), loop).result(10)
        return Applied("slow")

    desk.apply = apply  # type: ignore[method-assign]
    sent = asyncio.create_task(admin.post("/admin/policies", data=b"x", headers=BEARER))
    async with admin.get("/health") as response:
        assert response.status == 200
    released.set()
    assert (await (await sent).json())["name"] == "slow"


async def test_a_policy_is_deleted_unless_others_need_it(admin: Client, desk: FakeDesk) -> None:
    """404 for one that is not here, 409 with the reason for one that cannot go; the key is needed."""
    async with admin.delete("/admin/policies/new", headers=BEARER) as response:
        assert (response.status, await response.json()) == (200, {"name": "new", "deleted": True})
    assert [policy.name for policy in desk.served] == ["main"]
    async with admin.delete("/admin/policies/new", headers=BEARER) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (404, "policy_not_found")
    desk.refusal = ConfigError("main is the default policy")
    async with admin.delete("/admin/policies/main", headers=BEARER) as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"], error["message"]) == (409, "policy_in_use", str(desk.refusal))
    async with admin.delete("/admin/policies/main") as response:
        assert response.status == 401
