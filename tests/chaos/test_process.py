"""A server process under signals and on a full disk: it ends as promised, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import CANARY, COMPLETIONS, post
from tests.e2e.conftest import Server, start_server

SECRET = "xylophone-of-the-empress"


def ask(server: Server, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Status and answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def stream(server: Server, tokens: int) -> socket.socket:
    """A stream whose first bytes have come."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    body = CANARY | {"max_tokens": tokens, "ignore_eos": True, "stream": True, "adaptspec": {"max_depth": 0}}
    connection.sendall(post(COMPLETIONS, body))
    assert connection.recv(2000)
    return connection


def read_all(connection: socket.socket) -> bytes:
    """Until it is closed."""
    received = b""
    while part := connection.recv(65536):
        received += part
    return received


def children(process: int) -> list[int]:
    """Processes whose parent it is."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue  # it has just ended
            if parent == process:
                found.append(int(folder.name))
    return found


def test_a_signal_lets_streams_end_saves_and_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM: no new connections, the stream in flight is whole, state is saved, exit 0, no child."""
    server = start_server("--state-dir", str(tmp_path))
    for _ in range(3):
        assert ask(server, COMPLETIONS, CANARY)[0] == 200
    assert not children(server.process.pid)
    connection = stream(server, 120)
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    with connection:
        received = read_all(connection)
    assert server.process.wait(40) == 0
    took = time.monotonic() - began
    server.terminate()
    assert b"data: [DONE]" in received
    assert received.count(b"data: ") > 100
    assert json.loads((tmp_path / "learned.json").read_text())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])), timeout=5)
    print(f"\ndrained and gone after {took:.1f} s")


def test_a_second_signal_ends_it_within_two_seconds() -> None:
    """Whatever is in flight."""
    server = start_server("--shutdown-timeout", "60")
    connections = [stream(server, 900) for _ in range(4)]
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert server.process.poll() is None
    began = time.monotonic()
    server.terminate()
    took = time.monotonic() - began
    for connection in connections:
        connection.close()
    assert took < 2.0
    print(f"\ngone {took:.2f} s after the second signal")


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with keys, on a full disk, that reloads policies, logging all it ever logs."""
    folder = tmp_path_factory.mktemp("quiet")
    (folder / "keys").write_text("first\nsecond\n")
    (folder / "policy.yaml").write_text(
        subprocess.run(
            [sys.executable, "-m", "adaptspec", "policy", "show", "goodput"], capture_output=True, text=True, check=True
        ).stdout
    )
    files = ("--journal", str(folder / "rounds.jsonl"), "--state-dir", str(folder / "state"))
    keys = ("--api-key-file", str(folder / "keys"))
    server = start_server(*keys, *files, "--policy", str(folder / "policy.yaml"))
    # From now on no file of its own takes another byte.
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    server.folder = folder  # type: ignore[attr-defined]
    yield server
    assert server.terminate() == 0


def test_a_full_disk_and_broken_policies_change_no_answer(quiet: Server) -> None:
    """The journal cannot be written, the policy's file is broken again and again: all answers are the same."""
    key = {"Authorization": "Bearer second"}
    usual = json.loads(ask(quiet, COMPLETIONS, CANARY, **key)[1])["choices"]
    file: Path = quiet.folder / "policy.yaml"  # type: ignore[attr-defined]
    good = file.read_text()
    for broken in ("", "{", good.replace("goodput", "godput"), good[: len(good) // 2], "\x00", good):
        file.write_text(broken)
        os.utime(file, (time.time() + 3600, time.time() - 3600))
        for _ in range(3):
            status, answer = ask(quiet, COMPLETIONS, CANARY, **key)
            assert (status, json.loads(answer)["choices"]) == (200, usual)
        time.sleep(0.3)


def test_prompts_and_answers_are_in_no_log_and_no_metric(quiet: Server) -> None:
    """Prompts and answers are in no log line and no metric, whatever went wrong with the request."""
    key = {"Authorization": "Bearer first"}
    answer = ask(quiet, COMPLETIONS, CANARY | {"prompt": SECRET}, **key)
    text = json.loads(answer[1])["choices"][0]["text"]
    talk = [{"role": "user", "content": SECRET}]
    for path, body in [
        ("/v1/chat/completions", {"messages": talk, "max_tokens": 4}),
        ("/v1/chat/completions", {"messages": [*talk, {"role": SECRET, "content": "x"}]}),
        ("/v1/chat/completions", {"messages": talk, "chat_template": SECRET}),
        (COMPLETIONS, {"prompt": SECRET * 3000}),
        (COMPLETIONS, {"prompt": SECRET, "stop": SECRET, "logit_bias": {SECRET: 1}}),
        (COMPLETIONS, {"prompt": SECRET, "user": SECRET, SECRET: SECRET}),
        ("/tokenize", {"prompt": SECRET}),
        (f"/v1/models/{SECRET}", None),
    ]:
        assert ask(quiet, path, body, **key)[0] in (200, 400, 404)
    metrics = ask(quiet, "/metrics", **key)[1].decode()
    logged = "".join(quiet.printed) + metrics
    assert SECRET not in logged
    assert text.strip()[:20] not in logged


def test_strangers_need_a_key() -> None:
    """0.0.0.0 without a key is one clear line, before anything is loaded."""
    command = [sys.executable, "-m", "adaptspec", "serve", "--host", "0.0.0.0"]
    out = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert out.returncode == 2
    assert "--insecure" in out.stderr
    assert out.stderr.count("\n") == 1


def test_many_signals_and_clients_at_once(whole: bool) -> None:
    """Servers that are stopped while clients come and go exit with 0, every time."""
    for _ in range(5 if whole else 1):
        server = start_server("--shutdown-timeout", "2")
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(_try, server) for _ in range(40)]
            time.sleep(0.2)
            assert server.terminate() == 0
            for one in asked:
                one.result()


def _try(server: Server) -> None:
    try:
        assert ask(server, COMPLETIONS, CANARY)[0] in (200, 503)
    except OSError:
        return  # it was refused, or came too late


def test_connections_end_before_files_do() -> None:
    """One too many is answered; asyncio would write a traceback for each that it has no file for, thousands of them."""
    server = start_server("--max-num-seqs", "1", under=("prlimit", "--nofile=400:400"))
    address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
    clients: list[socket.socket] = []
    try:
        for _ in range(600):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(address)
            clients.append(client)
        assert sum(_refused(client) for client in clients) >= 1
        for client in clients:
            client.close()
        assert ask(server, "/health")[0] == 200
    finally:
        assert server.terminate() == 0
    log = "".join(server.printed)
    assert "At most 200 connections are taken instead of 1024" in log
    assert "out of system resource" not in log


def _refused(client: socket.socket) -> bool:
    """Whether a client was refused as one too many; most others are never answered."""
    readable, _, _ = select.select([client], [], [], 0.002)
    with suppress(OSError):
        return bool(readable) and client.recv(100).startswith(b"HTTP/1.1 503")
    return False
