"""Web pages of other origins: the allowed ones can call what is for programs, all others nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from adaptspec.errors import ConfigError, OverloadedError
from adaptspec.server.app import make_app
from adaptspec.server.auth import Access, AllowedHosts
from adaptspec.server.cors import AllowedOrigins
from adaptspec.telemetry.metrics import Metrics
from tests.server.test_policies import FakePolicyManager
from tests.telemetry.rounds import empty_feed

PAGE, EVIL = "http://localhost:3000", "https://evil.example"
CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
# What OpenAI's client for JavaScript asks for in a browser.
HEADERS = "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-os,x-stainless-retry-count"
Client = TestClient[web.Request, web.Application]


@asynccontextmanager
async def serving(
    engine: Any, tokenizer: Any, *allowed: str, keys: tuple[str, ...] = ("key",), hosts: AllowedHosts | None = None
) -> AsyncIterator[Client]:
    """A server with all routes, for pages of the `allowed` origins."""
    access = Access(keys, "admin", hosts=hosts, origins=AllowedOrigins(allowed) if allowed else None)
    app = make_app(engine, tokenizer, Metrics(), access=access, policies=FakePolicyManager(), live=empty_feed())
    async with TestClient(TestServer(app)) as client:
        yield client


def asks(origin: str, method: str = "POST", headers: str = HEADERS) -> dict[str, str]:
    """The headers of a preflight."""
    wanted = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers}
    return {"Origin": origin} | {name: value for name, value in wanted.items() if value}


@pytest.mark.parametrize("allowed", [(PAGE,), ("https://other.example", PAGE), ("*",)])
async def test_a_preflight_needs_no_key(engine: Any, tokenizer: Any, allowed: tuple[str, ...]) -> None:
    """It allows what is asked for: the key's header, the client's own, any other."""
    async with serving(engine, tokenizer, *allowed) as client:
        for path in (CHAT, "/v1/completions", "/v1/responses", "/v1/models", "/tokenize", "/nowhere"):
            for names in (HEADERS, "X-Anything", ""):
                method = "GET" if path == "/v1/models" else "POST"
                async with client.options(path, headers=asks(PAGE, method, names)) as response:
                    assert response.status == 204
                    assert await response.read() == b""
                    assert response.headers["Access-Control-Allow-Origin"] == ("*" if allowed == ("*",) else PAGE)
                    assert method in response.headers["Access-Control-Allow-Methods"]
                    assert response.headers.get("Access-Control-Allow-Headers", "") == names
                    assert ("Origin" in response.headers["Vary"].split(", ")) is (allowed != ("*",))
                    assert "Access-Control-Allow-Credentials" not in response.headers
    assert not engine.seen


STRANGERS = [EVIL, "null", "http://localhost:3001", "https://localhost:3000", f"{PAGE}.evil.example", f"{PAGE}/",
             "HTTP://LOCALHOST:3000", "http://localhost", "", "*"]  # fmt: skip


@pytest.mark.parametrize("origin", STRANGERS)
async def test_another_origin_gets_nothing(engine: Any, tokenizer: Any, origin: str) -> None:
    """No preflight, and no answer that its page could read, though the request itself is served as any other."""
    async with serving(engine, tokenizer, PAGE) as client:
        async with client.options(CHAT, headers=asks(origin)) as response:
            assert response.status in (401, 405)
            assert not [name for name in response.headers if name.startswith("Access-Control")]
        async with client.post(CHAT, json=BODY, headers={"Origin": origin} | KEY) as response:
            assert response.status == 200
            assert not [name for name in response.headers if name.startswith("Access-Control")]
            assert response.headers["Vary"] == "Origin"


KEY = {"Authorization": "Bearer key"}
ANSWERS = {
    "an answer": ({}, KEY, None, 200),
    "a stream": ({"stream": True}, KEY, None, 200),
    "a bad field": ({"temperature": -1}, KEY, None, 400),
    "no key": ({}, {}, None, 401),
    "a full server": ({}, KEY, OverloadedError("full"), 429),
    "a full server, streamed": ({"stream": True}, KEY, OverloadedError("full"), 429),
    "another model": ({"model": "other"}, KEY, None, 404),
    "an expectation": ({}, KEY | {"Expect": "nonsense"}, None, 417),
    "no JSON": ({}, KEY | {"Content-Type": "text/plain"}, None, 415),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_answers_streams_and_errors_can_be_read_by_the_page(engine: Any, tokenizer: Any, kind: str) -> None:
    change, headers, engine.refusal, status = ANSWERS[kind]
    async with (
        serving(engine, tokenizer, PAGE) as client,
        client.post(CHAT, json=BODY | change, headers={"Origin": PAGE} | headers) as response,
    ):
        assert response.status == status
        assert response.headers["Access-Control-Allow-Origin"] == PAGE
        assert "Origin" in response.headers["Vary"]
        assert "x-request-id" in response.headers["Access-Control-Expose-Headers"]
        await response.read()


PRIVATE = ["/admin/policies", "/admin/drain", "/admin/nowhere", "/live/snapshot", "/live/events", "/"]


@pytest.mark.parametrize("path", PRIVATE)
@pytest.mark.parametrize("allowed", [PAGE, "*"])
async def test_the_routes_of_the_admin_and_the_live_page_are_shared_with_no_origin(
    engine: Any, tokenizer: Any, path: str, allowed: str
) -> None:
    async with serving(engine, tokenizer, allowed) as client:
        for method in ("GET", "POST", "DELETE", "PATCH"):
            async with client.options(path, headers=asks(PAGE, method)) as response:
                assert response.status in (401, 404, 405)
                assert not [name for name in response.headers if name.startswith("Access-Control")]
            headers = {"Origin": PAGE, "Authorization": "Bearer admin"}
            async with client.request(method, path, headers=headers) as response:
                assert not [name for name in response.headers if name.startswith("Access-Control")]


async def test_an_allowed_origin_does_not_open_other_names(engine: Any, tokenizer: Any) -> None:
    """A page whose name was made to point here is refused as before."""
    headers = {"Origin": EVIL, "Host": "evil.example"}
    async with (
        serving(engine, tokenizer, "*", keys=(), hosts=AllowedHosts()) as client,
        client.post(CHAT, json=BODY, headers=headers) as response,
    ):
        assert response.status == 403
    assert not engine.seen


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("https://Example.com", "https://example.com"),
        ("https://example.com:443", "https://example.com"),
        ("http://example.com:80", "http://example.com"),
        ("http://example.com:443", "http://example.com:443"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("app://obsidian.md", "app://obsidian.md"),
        ("chrome-extension://abcdef", "chrome-extension://abcdef"),
    ],
)
async def test_origins_are_compared_as_browsers_write_them(engine: Any, tokenizer: Any, given: str, sent: str) -> None:
    async with serving(engine, tokenizer, given) as client, client.options(CHAT, headers=asks(sent)) as response:
        assert response.headers["Access-Control-Allow-Origin"] == sent


@pytest.mark.parametrize("text", ["", "null", "example.com", "localhost:3000", "http://", "http://a/", "http://a/b",
                                  "https://*.example.com", "http://localhost:*", "http://a:b", "http://a:99999",
                                  "http://me@a", "http://ä.example", "http://a, http://b", "**"])  # fmt: skip
def test_what_is_no_origin_is_refused_at_start(text: str) -> None:
    """`null` is what any page can send."""
    with pytest.raises(ConfigError, match="is no origin"):
        AllowedOrigins([text])
