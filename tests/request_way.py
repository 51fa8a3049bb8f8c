"""The way of one request through a server: which modules lead to verification, and what records a round makes.

Both are seen, not read off the sources: a profile function looks at the stacks of the event loop, where the handler
calls the engine, and of the engine's thread, where it verifies.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import Counter
from dataclasses import is_dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import aiohttp
from aiohttp import web

from adaptspec.app import AsyncEngine
from tests.running import Running, config_of

PACKAGE = "adaptspec."
PATH = "/v1/chat/completions"
STEP = "step"  # what the engine calls a round
POLICY = (
    "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: %s}\nspec:\n"
    "  drafters: [%s]\n  choose: {algorithm: static, depth: 3}\n"
)
DRAFTERS = {"drafting": "draft-model", "looking-up": "ngram"}  # by policy: both draft in one batch


class Way:
    """What was seen of one request."""

    def __init__(self) -> None:
        self.handler = ""  # its module
        self.to_engine: list[str] = []  # modules from the handler to the engine's front
        self.to_verification: list[str] = []  # and from the engine's thread on
        self._made_in: Counter[str] = Counter()  # in how many rounds each kind of record was made
        self._rounds = 0
        self._round: set[str] | None = None
        self._step: FrameType | None = None
        self._thread = 0  # that runs it: others make records meanwhile, which are none of the round
        self._entrance = AsyncEngine.submit.__code__
        self._creators: dict[Any, list[str]] = {}

    @property
    def modules(self) -> list[str]:
        """Each module on the way, once."""
        return list(dict.fromkeys(self.to_engine + self.to_verification))

    @property
    def records(self) -> set[str]:
        """Kinds of records that most rounds make; those of a request's end are not among them."""
        return {kind for kind, count in self._made_in.items() if 2 * count > self._rounds}

    def make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        """A task factory: what a handler leaves to a task is on its way, too."""
        task = asyncio.Task(coroutine, loop=loop, **options)
        self._creators[task] = self._stack(sys._getframe(1))
        return task

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """The profile function, of every thread."""
        if event == "call":
            self._called(frame)
        elif event == "return" and frame is self._step:
            self._made_in.update(self._round or ())
            self._rounds += 1
            self._step = self._round = None

    def _called(self, frame: FrameType) -> None:
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        if code.co_name in ("__init__", "__new__"):
            if self._round is not None and threading.get_ident() == self._thread:
                self._made(frame)
        elif code is self._entrance:
            way = self._stack(frame)
            if self.handler in way and not self.to_engine:
                self.to_engine = way[way.index(self.handler) :]
        elif module.startswith(f"{PACKAGE}engine.") and code.co_name == STEP and self._step is None:
            self._step, self._round, self._thread = frame, set(), threading.get_ident()
        elif module.startswith(f"{PACKAGE}verification.") and self._step is not None and not self.to_verification:
            self.to_verification = self._stack(frame)

    def _made(self, frame: FrameType) -> None:
        one = next(iter(frame.f_locals.values()), None)
        kind = one if isinstance(one, type) else type(one)
        record = is_dataclass(kind) or issubclass(kind, tuple)
        if self._round is not None and record and kind.__module__.startswith(PACKAGE):
            self._round.add(f"{kind.__module__}.{kind.__qualname__}")

    def _stack(self, frame: FrameType | None) -> list[str]:
        """Modules of the package on a stack, outermost first, each once; below it that of the task's creator."""
        found: list[str] = []
        while frame is not None:
            name = frame.f_globals.get("__name__", "")
            if name.startswith(PACKAGE) and name not in found:
                found.append(name)
            frame = frame.f_back
        try:
            before = self._creators.get(asyncio.current_task(), [])
        except RuntimeError:
            before = []
        return list(dict.fromkeys([*before, *reversed(found)]))


async def request_way(target: Path, draft: Path, folder: Path) -> tuple[list[str], set[str]]:
    """Serve two chat requests, each with a drafter of its own.

    Returns the modules from their handler to verification, and the records that a round of both makes.
    """
    files = {name: folder / f"{name}.yaml" for name in DRAFTERS}
    for name, file in files.items():
        file.write_text(POLICY % (name, DRAFTERS[name]))
    config = config_of(target, draft, folder)
    config = replace(config, engine=replace(config.engine, policies=tuple(map(str, files.values()))))
    way = Way()
    loop, added = asyncio.get_running_loop(), web.UrlDispatcher.add_route

    def add_route(router: web.UrlDispatcher, method: str, path: str, handler: Any, **options: Any) -> Any:
        way.handler = handler.__module__ if path == PATH else way.handler
        return added(router, method, path, handler, **options)

    # The engine's thread starts with the first request.
    threading.setprofile(way.note)
    try:
        with (
            patch.object(web.UrlDispatcher, "add_route", add_route),
            patch.dict(os.environ, XDG_CACHE_HOME=str(folder)),
        ):
            running = Running(config)
            url = await running.url()
        loop.set_task_factory(way.make_task)
        sys.setprofile(way.note)
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(_ask(session, url, name) for name in DRAFTERS))
        await running.stop()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        loop.set_task_factory(None)
    return way.modules, way.records


async def _ask(session: aiohttp.ClientSession, url: str, policy: str) -> None:
    body = {
        "messages": [{"role": "user", "content": "abc abc abc abc abc abc"}],
        "max_tokens": 32,
        "temperature": 0,
        "ignore_eos": True,
        "adaptspec": {"policy": policy},
    }
    async with session.post(url + PATH, json=body) as response:
        assert response.status == 200, await response.text()
