"""The error object of every failure, and a log that holds no client's words."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.test_utils import TestClient, TestServer

from adaptspec.server.app import make_app
from adaptspec.server.auth import Access
from adaptspec.server.errors import ClientSafeLogger, on_loop_error
from adaptspec.telemetry.metrics import Metrics
from tests.server.test_connection import serving, talk
from tests.server.test_policies import BEARER, KEY, FakePolicyManager

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("path", [CHAT, "/v2/nothing"])
async def test_an_expectation_that_cannot_be_met(client: Any, engine: Any, path: str) -> None:
    """aiohttp refuses it before any handler or middleware runs; the client gets our shape all the same."""
    async with client.post(path, json={"messages": HELLO}, headers={"Expect": "a-miracle"}) as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"], error["type"]) == (417, "expectation_failed", "invalid_request_error")
        assert "x-request-id" in response.headers
    assert engine.seen == []
    async with client.post(CHAT, json={"messages": HELLO, "max_tokens": 2}, expect100=True) as response:
        assert response.status == 200


@pytest.mark.parametrize(
    ("request_line", "status", "advice"),
    [
        ("POST /v1/v1/chat/completions", 404, "use /v1/chat/completions, so set the base URL"),
        ("POST /chat/completions", 404, "use /v1/chat/completions"),
        ("GET /v1/health", 404, "use /health, which is not below /v1"),
        ("GET /health/", 404, "use /health, with one slash"),
        ("POST /v1/chat/completion", 404, "did you mean /v1/chat/completions?"),
        ("POST /api/chat", 404, "not Ollama's, so use POST /v1/chat/completions"),
        ("GET /v1/responses/resp_1", 404, "it keeps no responses"),
        ("GET /dashboard", 404, "use GET / for the live page"),
        ("GET /admin/requests", 404, "use GET /live/snapshot"),
        ("POST /admin/state/save", 404, "state is saved every minute"),
        ("PUT /admin/policies/main", 405, "use POST /admin/policies to send a policy"),
        ("POST /admin/policies/validate", 405, "use POST /admin/policies?dry_run=true"),
        ("POST /admin/policies/simulate", 405, "use `adaptspec policy simulate`"),
        ("GET /admin/policies/reload", 405, "GET is not allowed for /admin/policies/reload; use DELETE, POST"),
        ("GET /v1/chat/completions", 405, "use POST"),
    ],
)
async def test_a_route_that_is_not_there_names_the_one_to_use(
    engine: Any, tokenizer: Any, request_line: str, status: int, advice: str
) -> None:
    """Misspelt ones, those of other APIs, and for one release those of earlier versions."""
    app = make_app(engine, tokenizer, Metrics(), access=Access(admin_key=KEY), policies=FakePolicyManager())
    async with TestClient(TestServer(app), headers=BEARER) as client, client.request(*request_line.split()) as response:
        assert response.status == status
        assert advice in (await response.json())["error"]["message"]


async def test_admin_routes_without_an_admin_key_say_how_to_get_them(client: Any) -> None:
    """But for removed ones, which no key brings back."""
    async with client.get("/admin/requests") as response:
        assert "use GET /live/snapshot" in (await response.json())["error"]["message"]
    for path in ("/admin/drain", "/admin/policies/reload"):
        async with client.post(path) as response:
            assert response.status == 404
            assert "ADAPTSPEC_ADMIN_KEY" in (await response.json())["error"]["message"]


WORD = b"SECRETxyz"
HEAD = b"Host: localhost\r\nAuthorization: Bearer SECRETxyz\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BODY = b'{"prompt": "SECRETxyz"}'
BROKEN = [
    b"POST /v1/completions HTTP/1.1\r\n" + CHUNKED + BODY + b"\r\n",  # a prompt where the size of a chunk belongs
    b"POST /v1/completions HTTP/1.1\r\n" + CHUNKED + b"5\r\nabcde\r\n" + BODY + b"\r\n",
    b"POST /none HTTP/1.1\r\n" + CHUNKED + b"5\r\nabcde\r\n" + BODY + b"\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nAuthorization: SECRETxyz\x01\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nSECRETxyz\x01: x\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nSECRETxyz\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: SECRETxyz\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + WORD * 2000 + b"\r\n\r\n",
    b"GET http://SECRETxyz:port/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / SECRETxyz\r\n\r\n",
    b"SECRETxyz\r\n\r\n",
]


async def test_no_byte_of_a_broken_request_is_logged(
    engine: Any, tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """At any level, with tracebacks: each has one line with its kind. Nor is it answered with them."""
    caplog.set_level(logging.DEBUG)
    async with serving(engine, tokenizer) as port:
        for sent in BROKEN:
            status, body = await talk(port, sent)
            assert status in (400, 404), sent
            assert WORD.decode() not in str(body), sent
    assert WORD.decode() not in caplog.text
    lines = [record.getMessage() for record in caplog.records if "characters)" in record.getMessage()]
    assert len(lines) >= len(BROKEN) - 2
    assert not any("\n" in line for line in lines)


async def test_a_path_cannot_forge_a_line_of_the_log(
    engine: Any, tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of ours is logged with the raw path: decoded, it would have line ends."""
    app = make_app(engine, tokenizer, Metrics())

    async def fail(http: web.Request) -> web.Response:
        raise RuntimeError("a fault of ours")

    app.router.add_get("/broken/{name}", fail)
    path = "/broken/x%0AERROR%20a%20forged%20line%0D"
    async with TestClient(TestServer(app)) as client, client.get(path) as response:
        error = (await response.json())["error"]
    assert (response.status, error["code"]) == (500, "internal_error")
    assert "a fault of ours" not in error["message"]
    (record,) = [record for record in caplog.records if record.name == "adaptspec.server.errors"]
    assert record.getMessage() == f"Failed on GET {path}"


async def test_errors_of_the_event_loop_are_logged_without_words(caplog: pytest.LogCaptureFixture) -> None:
    """Of futures that no task awaits, of errors that a client's caused, and of connections that an error ended."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(on_loop_error)
    try:
        try:
            raise BadHttpMessage("SECRETxyz")
        except BadHttpMessage as error:
            caused = web.RequestPayloadError("SECRETxyz")
            caused.__cause__ = error
            ours = RuntimeError("went wrong")
            ours.__cause__ = error
        for context in (
            {"exception": caused},
            {"exception": ours},
            {"exception": ValueError("SECRETxyz"), "protocol": object()},
        ):
            loop.call_exception_handler({"message": "never awaited", **context})
        loop.call_exception_handler({"message": "a fault of ours", "exception": ValueError("out of range")})
    finally:
        loop.set_exception_handler(None)
    assert "SECRETxyz" not in caplog.text
    assert caplog.text.count("never awaited: ") == 3
    assert "out of range" in caplog.text


def test_our_own_faults_keep_their_tracebacks(caplog: pytest.LogCaptureFixture) -> None:
    """A client that has left is worth no line."""
    logger = ClientSafeLogger(logging.getLogger("test"))
    for error in (ValueError("out of range"), ConnectionResetError("gone")):
        try:
            raise error
        except (ValueError, ConnectionError) as caught:
            logger.exception("failed", exc_info=caught)
    assert "Traceback" in caplog.text
    assert "out of range" in caplog.text
    assert [record.levelname for record in caplog.records] == ["ERROR"]
