"""`adaptspec top` against a real server: as JSON, as text for a pipe, and in a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.conftest import Server

COMMAND = [sys.executable, "-m", "adaptspec", "top"]
LEAVE_SCREEN = b"\x1b[?1049l"


def ask(server: Server, tokens: int) -> None:
    body = {"prompt": "One two three one two three", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"{server.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        assert response.status == 200


def test_its_json_is_what_the_server_did(server: Server) -> None:
    """Scripts read it: tokens by task, shares that add up, the policy."""
    ask(server, 40)
    time.sleep(1.1)  # telemetry counts a round within a second
    done = subprocess.run([*COMMAND, "--once", "--json", "--url", server.url], capture_output=True, check=True)
    shown = json.loads(done.stdout)
    total = shown["summary"]["total"]
    assert shown["server"]["default_policy"] == "goodput"
    assert sum(task["emitted"] for task in total["tasks"].values()) >= 39
    assert sum(total["reasons"].values()) == pytest.approx(1.0, abs=0.001)  # each is rounded
    assert total["tokens_per_second"] > 0.0


def test_no_server_is_one_line() -> None:
    """Exit status 2, like all errors of the user's to mend."""
    done = subprocess.run(
        [*COMMAND, "--once", "--url", "http://127.0.0.1:9"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert re.fullmatch(r"adaptspec: http://127.0.0.1:9: no answer .*\n", done.stderr)


@contextmanager
def terminal(url: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """It runs in a terminal of its own."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(
        [*COMMAND, "--url", url], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)


def read_until(terminal: int, wanted: bytes, seconds: float = 30.0) -> bytes:
    """What it wrote until something wanted came."""
    written, end = b"", time.monotonic() + seconds
    while wanted not in written:
        assert time.monotonic() < end, written[-2000:]
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                written += os.read(terminal, 65536)
            except OSError:  # Linux says so when the other end is closed
                break
    assert wanted in written, written[-2000:]
    return written


def test_it_lives_in_a_terminal_until_ctrl_c(server: Server) -> None:
    """It shows what happens, and leaves the terminal as it was."""
    with terminal(server.url) as (process, screen):
        read_until(screen, b"tokens/s")
        read_until(screen, b"tokens/s")  # drawn anew
        process.send_signal(signal.SIGINT)
        read_until(screen, LEAVE_SCREEN)
        assert process.wait(20) == 130
