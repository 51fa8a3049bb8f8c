"""What reaches the log: no client's words, and few of the lines that repeat."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from adaptspec.server.log_filters import ClientFaults, Repeats, on_loop_error
from tests.server.test_connection import serving, talk


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def repeats(clock: Clock) -> Iterator[Repeats]:
    repeats, logger = Repeats(most=2, seconds=10.0, clock=clock), logging.getLogger("talkative")
    logger.addFilter(repeats)
    yield repeats
    logger.removeFilter(repeats)


logger = logging.getLogger("talkative")


def test_a_line_is_written_so_often_and_then_counted(
    repeats: Repeats, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Thousands of tracebacks in a few seconds were what one client could have written."""
    for number in range(500):
        logger.warning("client %d did it again", number)
    assert caplog.messages == ["client 0 did it again", "client 1 did it again"]
    repeats.tell()
    assert len(caplog.messages) == 2, "its time is not up"
    clock.now = 10.0
    repeats.tell()
    repeats.tell()
    assert caplog.messages[2:] == ["498 more lines like this were left out: client %d did it again"]
    assert caplog.records[-1].levelno == logging.WARNING
    logger.warning("client %d did it again", 7)
    assert caplog.messages[-1] == "client 7 did it again"


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
    """At any level, with tracebacks: of each there is one line that tells its kind. Nor is it answered with them."""
    caplog.set_level(logging.DEBUG)
    async with serving(engine, tokenizer) as port:
        for sent in BROKEN:
            status, body = await talk(port, sent)
            assert status in (400, 404), sent
            assert WORD.decode() not in str(body), sent
    assert WORD.decode() not in caplog.text
    told = [record.getMessage() for record in caplog.records if "characters)" in record.getMessage()]
    left_out = sum(getattr(record, "left_out", 0) for record in caplog.records)  # of lines that repeat themselves
    assert len(told) + left_out >= len(BROKEN) - 2
    assert not any("\n" in line for line in told)


async def test_what_asyncio_says_of_errors_is_without_words_too(caplog: pytest.LogCaptureFixture) -> None:
    """Of futures that nobody waits for, of errors that came of a client's, and of connections that an error ended."""
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
            loop.call_exception_handler({"message": "nobody waited", **context})
        loop.call_exception_handler({"message": "a fault of ours", "exception": ValueError("out of range")})
    finally:
        loop.set_exception_handler(None)
    assert "SECRETxyz" not in caplog.text
    assert caplog.text.count("nobody waited: ") == 3
    assert "out of range" in caplog.text


def test_our_own_faults_keep_their_tracebacks(caplog: pytest.LogCaptureFixture) -> None:
    """And a client that has left is not worth a line."""
    logger = ClientFaults(logging.getLogger("test"))
    for error in (ValueError("out of range"), ConnectionResetError("gone")):
        try:
            raise error
        except (ValueError, ConnectionError) as caught:
            logger.exception("failed", exc_info=caught)
    assert "Traceback" in caplog.text
    assert "out of range" in caplog.text
    assert [record.levelname for record in caplog.records] == ["ERROR"]
