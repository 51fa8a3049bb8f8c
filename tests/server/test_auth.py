"""Who gets in: keys, and the names a browser may call the server by."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from adaptspec.engine.prefix_cache import scope_of
from adaptspec.errors import ConfigError
from adaptspec.server.app import make_app
from adaptspec.server.auth import Access, AllowedHosts, is_loopback
from adaptspec.telemetry.metrics import Metrics
from tests.server.test_policies import FakePolicyManager

KEY = "sésame"
Client = TestClient[web.Request, web.Application]

TARGETS = [
    "/v1/models", "/v1/models/", "//v1/models", "/v1//models", "/%76%31/models", "/v1/models%2f",
    "/v1/models?x=/health",
    "/v1/models/tiny", "/v1/models;/health", "/health/../v1/models", "/health%2f..%2fv1/models", "/./v1/models",
    "/v1/completions", "/v1/chat/completions", "/metrics", "/version", "/tokenize", "/detokenize", "/v1/policies",
    "/admin/policies", "/nowhere", "/HEALTH", "/health/", "/health//", "/health%00", "/health/x", "/", "*",
    "/api/chat", "/api/tags", "/v1/messages", "/v1/embeddings", "/slots", "/generate",
    "http://localhost/v1/models", "http://health/v1/models", "/v1/models#/health", "/%2e%2e/v1/models",
]  # fmt: skip


@pytest.fixture
async def locked(engine: Any, tokenizer: Any) -> AsyncIterator[Client]:
    app = make_app(engine, tokenizer, Metrics(), access=Access(["other", KEY], "admin"), policies=FakePolicyManager())
    async with TestClient(TestServer(app)) as client:
        yield client


async def raw(client: Client, head: str, *, host: str = "Host: x\r\n") -> int:
    """The status of a request written by hand; 0 if the server closed without one."""
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(head.encode("utf-8", "surrogateescape") + host.encode() + b"Connection: close\r\n\r\n")
    line = await asyncio.wait_for(reader.readline(), 5.0)
    writer.close()
    return int(line.split()[1]) if line else 0


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "BREW"])
async def test_no_spelling_of_a_path_leads_around_the_key(locked: Client, engine: Any, method: str) -> None:
    """A spelling that leads to a route with a key is 401 without one, and any other leads nowhere.

    Whether it leads to a route depends on neither: an unknown path is 404 with a key and without.
    """
    for target in TARGETS:
        without = await raw(locked, f"{method} {target} HTTP/1.1\r\n")
        key = "admin" if "admin" in target else "other"
        keyed = await raw(locked, f"{method} {target} HTTP/1.1\r\nAuthorization: Bearer {key}\r\n")
        assert without == (keyed if keyed in (400, 404) else 401), target
    for host in ("Host: health\r\n", "", "Host: /health\r\n", "Host: \r\n", "Host: localhost:0\r\nHost: b\r\n"):
        assert await raw(locked, f"{method} /v1/models HTTP/1.1\r\n", host=host) in (400, 401), host
    assert not engine.seen


async def test_an_unknown_path_is_404_and_a_known_one_401(locked: Client) -> None:
    """A client with a wrong base URL must not search for the fault in its key. Both keys open 405 of their routes."""
    for path in ("/nowhere", "/api/tags", "/v1/models/", "/admin/nowhere", "/v1/v1/models"):
        assert await raw(locked, f"GET {path} HTTP/1.1\r\n") == 404
    for path, key in (("/v1/completions", "other"), ("/admin/policies", "admin")):
        assert await raw(locked, f"PATCH {path} HTTP/1.1\r\n") == 401
        assert await raw(locked, f"PATCH {path} HTTP/1.1\r\nAuthorization: Bearer {key}\r\n") == 405
    assert await raw(locked, "PATCH /admin/policies HTTP/1.1\r\nAuthorization: Bearer other\r\n") == 401


async def test_health_is_open_and_tells_nothing_else(locked: Client) -> None:
    for path in ("/health", "/ready"):
        assert await raw(locked, f"GET {path} HTTP/1.1\r\n") == 200
        assert await raw(locked, f"HEAD {path} HTTP/1.1\r\n") == 200
        assert await raw(locked, f"POST {path} HTTP/1.1\r\n") == 405


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer ", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}", KEY, "Bearer sesame",
     "Bearer \udcff", "Bearer ключ", f"Bearer  {KEY}", "Bearer admin", "Bearer other sésame", "Bearer " + "x" * 8000],
)  # fmt: skip
async def test_wrong_keys_of_any_bytes_are_401(locked: Client, given: str) -> None:
    """Non-ASCII keys are compared as the bytes they are; none of them breaks the server."""
    assert await raw(locked, f"GET /v1/models HTTP/1.1\r\nAuthorization: {given}\r\n") == 401


@pytest.mark.parametrize("given", [f"Bearer {KEY}", "Bearer other", f"bearer {KEY}", f"BEARER {KEY}"])
async def test_every_key_opens_what_users_need_and_no_more(locked: Client, given: str) -> None:
    """The admin routes have a key of their own, and the API keys do not open them."""
    header = f"Authorization: {given}\r\n"
    assert await raw(locked, f"GET /v1/models HTTP/1.1\r\n{header}") == 200
    assert await raw(locked, f"GET /metrics HTTP/1.1\r\n{header}") == 200
    assert await raw(locked, f"GET /nowhere HTTP/1.1\r\n{header}") == 404
    assert await raw(locked, f"GET /admin/policies HTTP/1.1\r\n{header}") == 401
    assert await raw(locked, "GET /admin/policies HTTP/1.1\r\nAuthorization: Bearer admin\r\n") == 200


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True), ("LOCALHOST:8000", True), ("127.0.0.1", True), ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("10.1.2.3:80", True), ("app.localhost:1", True), ("fox.lan", True), ("fox.lan.:80", True), ("", True),
        ("evil.example", False), ("localhost.evil.example", False), ("127.0.0.1.evil.example:80", False),
        ("evil.example:127.0.0.1", False), ("[evil.example]", False), ("localhost:x", False), ("1.2.3", False),
    ],
)  # fmt: skip
async def test_a_page_that_was_pointed_here_is_refused(engine: Any, tokenizer: Any, host: str, allowed: bool) -> None:
    """DNS rebinding: names that are not ours get 403; addresses and localhost are served."""
    app = make_app(engine, tokenizer, Metrics(), access=Access(hosts=AllowedHosts(["Fox.LAN"])))
    async with TestClient(TestServer(app)) as client:
        status = await raw(client, "GET /v1/models HTTP/1.1\r\n", host=f"Host: {host}\r\n")
        other = await raw(client, "GET /api/tags HTTP/1.1\r\n", host=f"Host: {host}\r\n")
    assert status == (200 if allowed else 403)
    assert other == (404 if allowed else 403)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_alone_needs_no_key(host: str) -> None:
    """Its Host header is then checked; with a key it need not be."""
    assert is_loopback(host)
    assert Access.on_address(host).hosts is not None
    assert Access.on_address(host, api_keys=["key"]).hosts is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "no.such.host.invalid"])
def test_an_address_that_others_reach_needs_a_key_or_a_word(host: str) -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        Access.on_address(host)
    assert Access.on_address(host, api_keys=["key"]).hosts is None
    assert Access.on_address(host, insecure=True).hosts is None


@pytest.mark.parametrize(
    ("addresses", "alone"),
    [(("127.0.0.1", "::1"), True), (("127.0.0.1", "192.0.2.1"), False), (("192.0.2.1", "::1"), False)],
)
def test_a_name_is_of_this_machine_alone_if_all_its_addresses_are(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...], alone: bool
) -> None:
    """A server listens on all of them, and one that others reach is enough to let them in."""
    found = [
        (socket.AF_INET6 if ":" in one else socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, 0)) for one in addresses
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **more: found)
    assert is_loopback("fox.lan") is alone
    with nullcontext() if alone else pytest.raises(ConfigError, match="--insecure"):
        Access.on_address("fox.lan")


async def test_a_key_that_is_no_utf8_is_a_key(engine: Any, tokenizer: Any) -> None:
    """As the environment may hold one: its bytes are what is compared."""
    app = make_app(engine, tokenizer, Metrics(), access=Access(["k\udcff"]))
    async with TestClient(TestServer(app)) as client:
        for key, status in (("k\udcff", 200), ("k\udcfe", 401)):
            assert await raw(client, f"GET /v1/models HTTP/1.1\r\nAuthorization: Bearer {key}\r\n") == status


async def test_requests_carry_the_name_of_their_key(engine: Any, tokenizer: Any) -> None:
    """And a name is no key: neither alone, nor with its key as it stands in the file."""
    app = make_app(
        engine, tokenizer, Metrics(), access=Access(["one # gold", "two"], "a # b"), policies=FakePolicyManager()
    )
    async with TestClient(TestServer(app)) as client:
        statuses = []
        for key in ("one", "two", "gold", "one # gold"):
            headers, body = {"Authorization": f"Bearer {key}"}, {"prompt": "x", "max_tokens": 1}
            async with client.post("/v1/completions", json=body, headers=headers) as response:
                statuses.append(response.status)
        assert statuses == [200, 200, 401, 401]
        assert [request.key for request in engine.seen][:1] == ["gold"]
        for key, status in (("a", 200), ("b", 401), ("a # b", 401)):
            async with client.get("/admin/policies", headers={"Authorization": f"Bearer {key}"}) as response:
                assert response.status == status


async def test_keys_without_a_name_are_kept_apart(engine: Any, tokenizer: Any) -> None:
    """They shared cached prompts, as if there were no keys."""
    app = make_app(engine, tokenizer, Metrics(), access=Access(["alpha", "beta"]))
    async with TestClient(TestServer(app)) as client:
        for key in ("alpha", "beta", "alpha"):
            headers, body = {"Authorization": f"Bearer {key}"}, {"prompt": "x", "max_tokens": 1}
            async with client.post("/v1/completions", json=body, headers=headers) as response:
                assert response.status == 200
        scopes = [scope_of(request, "key") for request in engine.seen]
        assert scopes[0] == scopes[2] != scopes[1]
        assert "alpha" not in str(scopes[0])


@pytest.mark.parametrize("keys", [[""], ["# a comment"], ["one", " "], ["#"]])
def test_a_comment_is_no_key(keys: list[str]) -> None:
    """Otherwise a server with such a list would serve requests without a key."""
    with pytest.raises(ConfigError, match="key is empty"):
        Access(keys)
