"""A whole server in this process, on tiny models: for tests of what it keeps, exports and shows."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console

from adaptspec.app import serve
from adaptspec.config import ServeConfig

HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: %s}\nspec:\n"
MAIN = HEAD % "main" + "  choose: {algorithm: goodput}\n"
OTHER = HEAD % "other" + "  choose: {algorithm: static, depth: 2}\n"


def config_of(target: Path, draft: Path, folder: Path) -> ServeConfig:
    (folder / "main.yaml").write_text(MAIN)
    (folder / "other.yaml").write_text(OTHER)
    policies = (str(folder / "main.yaml"), str(folder / "other.yaml"))
    return ServeConfig(
        model=str(target),
        draft=str(draft),
        policy=policies,
        max_num_seqs=2,
        detect_tasks=False,
        port=0,
        state_dir=folder / "state",
        journal=folder / "journal.jsonl",
        admin_key="open sesame",
    )


class Running:
    """A server that has begun to listen."""

    def __init__(self, config: ServeConfig) -> None:
        self._out = io.StringIO()
        self.task = asyncio.create_task(serve(config, Console(file=self._out, width=200)))

    async def url(self) -> str:
        while not (found := re.search(r"listens on (http://\S+)", self._out.getvalue())):
            assert not self.task.done(), self.task.exception()
            await asyncio.sleep(0.01)
        return found[1]

    @property
    def said(self) -> str:
        """What it has printed."""
        return self._out.getvalue()

    async def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(self.task, 60)


async def get(session: aiohttp.ClientSession, url: str, **options: Any) -> Any:
    async with session.get(url, **options) as response:
        assert response.status == 200
        return await response.json() if response.content_type == "application/json" else await response.text()
