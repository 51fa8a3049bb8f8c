"""`adaptspec top`: a page of a snapshot's figures, and errors that say what to do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from adaptspec.cli import main

SNAPSHOT: dict[str, Any] = json.loads(Path(__file__).with_name("live_snapshot.json").read_text())


class _Server(HTTPServer):
    """Answers with a status and a body, to those that have the key."""

    status, body, key = 200, json.dumps(SNAPSHOT), "secret"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        known = self.headers["Authorization"] == f"Bearer {server.key}"
        self.send_response((server.status if self.path == "/live/snapshot" else 404) if known else 401)
        self.end_headers()
        self.wfile.write(server.body.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Handler) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def _printed(server: _Server, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert main(["top", "--url", server.url + "/v1", "--api-key", "secret\nother", *more]) == 0
    return capsys.readouterr().out


def test_a_pipe_gets_the_page_once(server: _Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Speed with its interval, why, tasks, and the rounds of requests."""
    shown = _printed(server, capsys)
    assert "smollm2: 1 request running, 0 waiting; policy auto" in shown
    assert "42.1 tokens/s, 1.42 (1.31 to 1.53) x plain decoding (the last 30 seconds)" in shown
    assert SNAPSHOT["summary"]["recent"]["why"] in " ".join(shown.split())
    assert "cmpl-1" in shown
    assert "·▃█" in shown  # off, 3 tokens, 8 or more


def test_before_the_first_round_it_says_so(server: _Server, capsys: pytest.CaptureFixture[str]) -> None:
    """And where only the figures since the start are known, these are shown."""
    total = {**SNAPSHOT["summary"]["recent"], "speedup": None}
    for summary, said in (
        ({"recent": None, "total": None}, "No round has ended yet."),
        ({"recent": None, "total": total}, "42.1 tokens/s, unknown x plain decoding (since its start)"),
    ):
        server.body = json.dumps({**SNAPSHOT, "summary": summary})
        assert said in _printed(server, capsys)


def test_json_is_the_servers_own_figures(server: _Server, capsys: pytest.CaptureFixture[str]) -> None:
    """One object, without strips of rounds."""
    found = json.loads(_printed(server, capsys, "--json"))
    assert found["summary"] == SNAPSHOT["summary"]
    assert "running" not in found


def test_the_key_may_be_a_variable(
    server: _Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own, with a key in each line."""
    monkeypatch.setenv("ADAPTSPEC_API_KEY", "secret\nother")
    assert main(["top", "--once", "--url", server.url]) == 0
    assert "smollm2: 1 request running" in capsys.readouterr().out


def test_an_address_without_a_scheme_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", "127.0.0.1:8000"]) == 2
    expected = "adaptspec: --url 127.0.0.1:8000: give an address such as http://127.0.0.1:8000\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("status", "body", "key", "said"),
    [
        (200, "", "other", "answers 401 at /live/snapshot; give its key (--api-key)"),
        (404, "", "secret", "answers 404 at /live/snapshot; is it an AdaptSpec server?"),
        (200, "<html>", "secret", "is not that of an AdaptSpec server of this version"),
        (200, "{}", "secret", "is not that of an AdaptSpec server of this version"),
    ],
)
def test_what_cannot_be_watched_is_one_line(
    server: _Server, capsys: pytest.CaptureFixture[str], *, status: int, body: str, key: str, said: str
) -> None:
    server.status, server.body = status, body
    assert main(["top", "--once", "--url", server.url, "--api-key", key]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"adaptspec: {server.url}")
    assert said in line
