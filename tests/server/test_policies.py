"""The routes about policies: who may see and change what, and what an answer says; draining and resetting."""

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
from adaptspec.server.app import make_app
from adaptspec.server.auth import Access
from adaptspec.telemetry.metrics import Metrics

KEY = "pass phrase"
BEARER = {"Authorization": f"Bearer {KEY}"}
Client = TestClient[web.Request, web.Application]


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
class FakePolicyManager:
    """Keeps the policies it was sent; `refusal` is raised by every change and check."""

    served: tuple[Policy, ...] = (Policy("main"), Policy("new", "canary"))
    default: str = "main"
    sent: list[tuple[str, str]] = field(default_factory=list)
    refusal: Exception | None = None

    def check(self, text: str, source: str) -> str:
        if self.refusal is not None:
            raise self.refusal
        return text

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
def manager() -> FakePolicyManager:
    return FakePolicyManager()


@pytest.fixture
async def client(engine: Any, tokenizer: Any, manager: FakePolicyManager) -> AsyncIterator[Client]:
    app = make_app(engine, tokenizer, Metrics(), access=Access(admin_key=KEY), policies=manager)
    async with TestClient(TestServer(app)) as client:
        yield client


async def ask(client: Client, method: str, path: str, **more: Any) -> tuple[int, Any]:
    """The answer to the administrator."""
    async with client.request(method, path, headers=BEARER, **more) as response:
        return response.status, await response.json()


async def test_clients_see_the_policies_that_they_may_name(client: Client) -> None:
    """Names, descriptions and the default without a key; the YAML of one by its name."""
    async with client.get("/v1/policies") as response:
        body = await response.json()
    assert response.status == 200
    assert body["data"] == [
        {"id": "main", "object": "policy", "description": "what it is for", "default": True},
        {"id": "new", "object": "policy", "description": "what it is for", "default": False},
    ]
    async with client.get("/v1/policies/new") as response:
        assert await response.json() == body["data"][1] | {"yaml": "spec: {}"}
    async with client.get("/v1/policies/none") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (404, "policy_not_found")


async def test_the_administrator_sees_the_policies_that_run(client: Client) -> None:
    _, body = await ask(client, "GET", "/admin/policies")
    assert [(policy["id"], policy["mode"], policy["yaml"]) for policy in body["data"]] == [
        ("main", "live", "spec: {}"),
        ("new", "canary", "spec: {}"),
    ]


async def test_a_policy_is_sent_as_yaml(client: Client, manager: FakePolicyManager) -> None:
    """With any content type: the key protects the route."""
    for headers in (BEARER, BEARER | {"Content-Type": "application/yaml"}):
        async with client.post("/admin/policies", data="näme: x".encode(), headers=headers) as response:
            assert response.status == 200
            assert await response.json() == {"name": "new", "replaced": True, "carried": False}
    assert manager.sent == [("näme: x", "<body>")] * 2


async def test_a_policy_that_cannot_be_used_is_refused_with_its_location(
    client: Client, manager: FakePolicyManager
) -> None:
    """400 with the located message; a dead engine is a server error."""
    manager.refusal = PolicyError("<body>:3:1: spec: unknown key")
    status, body = await ask(client, "POST", "/admin/policies", data=b"x")
    assert (status, body["error"]["message"]) == (400, "<body>:3:1: spec: unknown key")
    manager.refusal = EngineError("the engine has stopped")
    assert (await ask(client, "POST", "/admin/policies", data=b"x"))[0] == 500
    status, body = await ask(client, "POST", "/admin/policies", data=b"\xff\xfe")
    assert status == 400
    assert "UTF-8" in body["error"]["message"]
    assert len(manager.sent) == 2


async def test_a_dry_run_lists_problems_and_changes_nothing(client: Client, manager: FakePolicyManager) -> None:
    """A fault without a position in the text has neither line nor column."""
    path = "/admin/policies?dry_run=true"
    for name, replaces in (("main", True), ("fresh", False)):
        found = {"valid": True, "name": name, "replaces": replaces, "problems": []}
        assert await ask(client, "POST", path, data=name) == (200, found)
    manager.refusal = PolicyError("<body>:3:1: spec: unknown key\nthe server has 64 policies")
    status, found = await ask(client, "POST", path, data="x")
    assert (status, found["valid"], found["name"]) == (200, False, None)
    assert found["problems"] == [
        {"line": 3, "column": 1, "message": "spec: unknown key"},
        {"line": None, "column": None, "message": "the server has 64 policies"},
    ]
    assert manager.sent == []


@pytest.mark.parametrize("value", ["True", "1", "", "yes"])
async def test_a_dry_run_is_exactly_true_or_false(client: Client, manager: FakePolicyManager, value: str) -> None:
    """A client that writes True wants no change, and must not get one."""
    status, body = await ask(client, "POST", f"/admin/policies?dry_run={value}", data="x")
    assert (status, body["error"]["param"]) == (400, "dry_run")
    assert manager.sent == []
    assert (await ask(client, "POST", "/admin/policies?dry_run=false", data="x"))[1]["name"] == "new"


async def test_without_an_admin_key_there_are_no_admin_routes(
    engine: Any, tokenizer: Any, manager: FakePolicyManager
) -> None:
    app = make_app(engine, tokenizer, Metrics(), access=Access(), policies=manager)
    async with TestClient(TestServer(app)) as client:
        for headers in ({}, {"Authorization": "Bearer "}):
            for path in ("/admin/policies", "/admin/drain", "/admin/state/reset"):
                async with client.post(path, data=b"x", headers=headers) as response:
                    assert response.status == 404
        async with client.get("/v1/policies") as response:
            assert response.status == 200


@pytest.mark.parametrize("key", ["", "# ops"])
def test_an_empty_admin_key_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="key is empty"):
        Access(admin_key=key)


async def test_streams_go_on_while_a_policy_waits_for_its_round(client: Client, manager: FakePolicyManager) -> None:
    """The manager may block; the event loop must not."""
    loop, released = asyncio.get_running_loop(), asyncio.Event()

    def apply(text: str, source: str) -> Applied:
        asyncio.run_coroutine_threadsafe(released.wait(), loop).result(10)
        return Applied("slow")

    manager.apply = apply  # type: ignore[method-assign]
    sent = asyncio.create_task(client.post("/admin/policies", data=b"x", headers=BEARER))
    async with client.get("/health") as response:
        assert response.status == 200
    released.set()
    assert (await (await sent).json())["name"] == "slow"


async def test_a_policy_is_deleted_unless_others_need_it(client: Client, manager: FakePolicyManager) -> None:
    """404 for an unknown one, 409 with the reason for one that is in use; the key is needed."""
    assert await ask(client, "DELETE", "/admin/policies/new") == (200, {"name": "new", "deleted": True})
    assert [policy.name for policy in manager.served] == ["main"]
    status, body = await ask(client, "DELETE", "/admin/policies/new")
    assert (status, body["error"]["code"]) == (404, "policy_not_found")
    manager.refusal = ConfigError("main is the default policy")
    status, body = await ask(client, "DELETE", "/admin/policies/main")
    assert (status, body["error"]["code"]) == (409, "policy_in_use")
    assert body["error"]["message"] == "main is the default policy"
    async with client.delete("/admin/policies/main") as response:
        assert response.status == 401


async def test_files_are_reloaded_and_learned_state_is_reset(client: Client) -> None:
    _, files = await ask(client, "POST", "/admin/policies/reload")
    assert files["data"] == [{"name": "main", "reloaded": True, "error": None}]
    assert await ask(client, "POST", "/admin/state/reset") == (200, {"reset": ["main", "new"]})


async def test_draining_refuses_new_requests_and_can_be_ended(client: Client) -> None:
    """Not ready, but alive: a supervisor that restarts dead servers must leave it alone."""
    assert (await ask(client, "POST", "/admin/drain"))[1]["draining"] is True
    status, body = await ask(client, "POST", "/v1/completions", json={"prompt": "x"})
    assert (status, body["error"]["code"]) == (503, "draining")
    assert (await ask(client, "GET", "/ready"))[0] == 503
    assert (await ask(client, "GET", "/health"))[0] == 200
    assert (await ask(client, "DELETE", "/admin/drain"))[1]["draining"] is False
    assert (await ask(client, "POST", "/v1/completions", json={"prompt": "x", "max_tokens": 1}))[0] == 200
