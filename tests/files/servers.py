"""Servers that refuse: the app on a real engine of a tiny model, or on a scripted engine, behind real sockets.

This is the only module of the contracts that puts a server together. It is adapted when the composition root changes.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptspec.config import EngineConfig
from adaptspec.control.cost_model import CostModel
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.build import Built, build
from adaptspec.engine.policy_manager import PolicyManager
from adaptspec.errors import EngineError, OverloadedError
from adaptspec.models.chat.chat_template import ChatTemplate
from adaptspec.server.app import make_app
from adaptspec.server.auth import Access, AllowedHosts
from adaptspec.server.cors import AllowedOrigins
from adaptspec.server.listener import serve_app
from adaptspec.server.served_names import ServedNames
from adaptspec.telemetry.metrics import Metrics
from tests.conftest import tiny_tokenizer
from tests.control.helpers import QUIET
from tests.server.bounds import bounds
from tests.server.conftest import FakeEngine
from tests.telemetry.rounds import empty_feed

SECONDS = 120.0  # for one answer
KEY, ADMIN_KEY, PAGE = "sesame", "admin", "http://localhost:3000"
_SMALL: Mapping[str, int] = {
    "body_bytes": 3000,
    "json_parts": 40,
    "json_items": 100,
    "json_depth": 8,
    "text_bytes_per_token": 1,
    "prompt_logprobs": 6,
    "schema_literal_bytes": 12,
    "schema_multiples": 6,
    "schema_min_length": 7,
    "grammar_bytes": 1,
}
_TEMPLATES = {
    "no template": None,
    "broken template": "{{ 'x' + 1 }}",
    "refusing template": "{{ raise_exception('system messages are not supported') }}",
    "forgetful template": "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
    "long template": "{{ 'y' * 100000 }}",
    "picky template": (
        "{% if date_string is defined %}{{ 'On ' + date_string }}{% endif %}"
        "{% if tone is defined and tone not in ['dry', 'warm'] %}{{ raise_exception('no such tone') }}{% endif %}"
        "{% if reasoning_effort is defined %}{{ {'low': 1, 'high': 2}[reasoning_effort] + 0 }}{% endif %}"
        "{% for m in messages %}{% if 'odd' in m.content %}{{ raise_exception('too odd') }}{% endif %}"
        "<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    ),
}


@dataclass(frozen=True)
class World:
    """The engine that all servers of a recording share."""

    built: Built
    engine: AsyncEngine
    policies: PolicyManager


@asynccontextmanager
async def world(target: Path, draft: Path) -> AsyncIterator[World]:
    """An engine of two tiny models, with costs that are given and not measured."""
    config = EngineConfig(
        model=str(target),
        draft=str(draft),
        policy=("goodput", "static-3"),
        max_num_seqs=2,
        detect_tasks=False,
        threads=1,
    )
    built = await asyncio.to_thread(build, config, costs=CostModel(QUIET.profile()))
    engine = AsyncEngine(built.core, "tiny")
    manager = PolicyManager(engine, built.core, built.costs, built.specs, built.files, max_policies=2)
    try:
        yield World(built, engine, manager)
    finally:
        await asyncio.to_thread(engine.close)


def _usual(shared: World) -> Mapping[str, Any]:
    return {"access": Access(hosts=AllowedHosts(["fox.lan"])), "policies": shared.policies}


def _administered(shared: World) -> Mapping[str, Any]:
    return {"access": Access(admin_key=ADMIN_KEY), "policies": shared.policies}


def _keyed(shared: World) -> Mapping[str, Any]:
    return {
        "access": Access([f"{KEY} # gold", "other"], ADMIN_KEY, origins=AllowedOrigins([PAGE])),
        "policies": shared.policies,
        "live": empty_feed(),
    }


def _limited(shared: World) -> Mapping[str, Any]:
    return {"bounds": _SMALL, "access": Access(admin_key=ADMIN_KEY), "policies": shared.policies}


def _named(shared: World) -> Mapping[str, Any]:
    return {"names": ServedNames.of(["tiny", "org/tiny"], "tiny")}


def _templated(source: str | None) -> Callable[[World], Mapping[str, Any]]:
    def options(shared: World) -> Mapping[str, Any]:
        tokenizer = tiny_tokenizer()
        tokenizer.chat_template = source
        return {"template": ChatTemplate(tokenizer), "tokenizer": tokenizer}

    return options


def _scripted(**state: Any) -> Callable[[World], Mapping[str, Any]]:
    def options(shared: World) -> Mapping[str, Any]:
        engine = FakeEngine()
        for name, value in state.items():
            setattr(engine, name, value)
        return {"engine": engine}

    return options


# Options of `make_app` by the name of the server; `engine` and `tokenizer` are the world's where they are not given.
# `bounds` are no option of it: they hold while it runs.
SERVERS: Mapping[str, Callable[[World], Mapping[str, Any]]] = {
    "usual": _usual,
    "admin": _administered,
    "keyed": _keyed,
    "draining": _administered,
    "limited": _limited,
    "named": _named,
    **{name: _templated(source) for name, source in _TEMPLATES.items()},
    "full engine": _scripted(capacity=0),
    "stopped engine": _scripted(is_alive=False),
    "failing engine": _scripted(failing_at=1),
    "overloaded engine": _scripted(refusal=OverloadedError("the queue is full; wait")),
    "broken engine": _scripted(refusal=EngineError("it broke; send it again")),
    "unknown error": _scripted(refusal=RuntimeError("a secret path")),
}


@asynccontextmanager
async def running(name: str, shared: World) -> AsyncIterator[int]:
    """The port of a server that listens on this machine."""
    options = dict(SERVERS[name](shared))
    engine = options.pop("engine", shared.engine)
    tokenizer = options.pop("tokenizer", shared.built.tokenizer)
    with bounds(**options.pop("bounds", {})):
        app = make_app(engine, tokenizer, Metrics(), **options)
        address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(serve_app(app, port=0, on_listening=address.set_result))
        await asyncio.wait([address, task], return_when=asyncio.FIRST_COMPLETED)
        try:
            yield int(address.result().rpartition(":")[2])
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@dataclass(frozen=True)
class Answer:
    """What came back; `status` is 0 where the server closed the connection without an answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error(self) -> Mapping[str, Any]:
        """The error object of OpenAI's shape, of a stream that of its last event; empty if there is none."""
        *_, event = [b"", *re.findall(rb"^data: (\{.*)\r?$", self.body, re.MULTILINE)]
        try:
            found = json.loads(event or self.body)
        except ValueError:
            return {}
        return dict(found["error"]) if isinstance(found, dict) and isinstance(found.get("error"), dict) else {}


async def send(port: int, head: str, body: bytes) -> Answer:
    """The answer to a request whose head is sent as it is, without anything added."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body)
        return await asyncio.wait_for(_received(reader), SECONDS)
    except (ConnectionError, asyncio.IncompleteReadError):
        return Answer(0, {}, b"")
    finally:
        writer.close()


async def _received(reader: asyncio.StreamReader) -> Answer:
    """The first answer that is not an interim one (1xx)."""
    while True:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        status, headers = int(first.split()[1]), dict(line.split(": ", 1) for line in lines)
        if status >= 200:
            length = headers.get("Content-Length", "0" if status == 204 else None)
            body = await (reader.read() if length is None else reader.readexactly(int(length)))
            return Answer(status, headers, body)
