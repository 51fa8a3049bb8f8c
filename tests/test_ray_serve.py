"""The example of AdaptSpec's server under Ray Serve, without Ray: what a replica makes of its server, and passes on."""

from __future__ import annotations

import asyncio
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "ray_serve.py"
# A server that holds its place and lives on, or ends at once. It notes each start.
SERVER = """#!/bin/sh
place=$(expr "$*" : ".*--state-dir \\(.*\\)")
mkdir -p "$place" && echo "${place##*/}" >> "$place/../starts"
exec 9> "$place/lock" && flock -n 9 || exit 2
"""


class Client:
    """Stands for the HTTP client: nobody answers, but for one request that is noted."""

    def __init__(self, **_: Any) -> None:
        self.asked: list[Any] = []

    def get(self, url: str) -> Any:
        raise ConnectionError(url)

    async def request(self, method: str, url: str, **more: Any) -> Any:
        self.asked = [method, url, more]
        headers = {
            "X-Request-Id": "r1",
            "Retry-After": "7",
            "Content-Type": "text/plain",
            "Transfer-Encoding": "chunked",
        }
        return SimpleNamespace(status=429, headers=headers, content=SimpleNamespace(iter_any=lambda: ["body"]))

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the example defines, where Ray, aiohttp and Starlette say what they are given."""
    command = tmp_path / "adaptspec"
    command.write_text(SERVER)
    command.chmod(0o755)
    monkeypatch.setenv("ADAPTSPEC", str(command))

    def deployment(**_: Any) -> Any:
        return lambda kind: type("Deployed", (kind,), {"bind": lambda *_: None, "__del__": lambda _: None})

    fakes: dict[str, dict[str, Any]] = {
        "ray": {"serve": SimpleNamespace(deployment=deployment)},
        "aiohttp": {"ClientSession": Client, "ClientTimeout": lambda **_: None, "ClientError": ConnectionError},
        "starlette": {},
        "starlette.requests": {"Request": object},
        "starlette.responses": {"StreamingResponse": lambda *told: told},
    }
    for name, holds in fakes.items():
        module = ModuleType(name)
        vars(module).update(holds)
        monkeypatch.setitem(sys.modules, name, module)
    return runpy.run_path(str(EXAMPLE))


async def started(kind: Any, state: Path) -> None:
    await kind.__init__(object.__new__(kind), str(state))


def test_a_server_that_ends_at_once_is_an_error(example: dict[str, Any], tmp_path: Path) -> None:
    """After one start, and not a replica that has no server."""
    with pytest.raises(RuntimeError, match="ended with 0"):
        asyncio.run(started(example["Server"], tmp_path / "state"))
    assert (tmp_path / "state" / "starts").read_text().split() == ["0"]


def test_queries_and_headers_go_through(example: dict[str, Any]) -> None:
    """But for those of one connection."""

    async def body() -> bytes:
        return b"{}"

    client = Client()
    replica = SimpleNamespace(_client=client, _port=5)
    told = {"authorization": "Bearer k", "host": "h", "connection": "close", "content-length": "2"}
    url = SimpleNamespace(path="/v1/models", query="a=1&b=%20")
    request = SimpleNamespace(url=url, method="GET", headers=told, body=body)
    content, status, headers = asyncio.run(example["Server"].__call__(replica, request))
    asked = ["GET", "http://127.0.0.1:5/v1/models?a=1&b=%20", {"data": b"{}", "headers": {"authorization": "Bearer k"}}]
    assert client.asked == asked
    assert [content, status] == [["body"], 429]
    assert headers == {"X-Request-Id": "r1", "Retry-After": "7", "Content-Type": "text/plain"}
