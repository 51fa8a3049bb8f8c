"""AdaptSpec's own server under Ray Serve: each replica is one `adaptspec serve`; Ray starts, watches and balances.

    pip install "ray[serve]" adaptspec
    STATE=/mnt/adaptspec serve run examples.ray_serve:app

What a replica learns stays in a place of its own below STATE, which whoever takes its place goes on from. All of them
together: `adaptspec state merge $STATE/* -o merged.json`. A server saves every minute, and when it ends.

`pytest -n0 -m nightly tests/hosts/scale/test_ray_serve.py`, with Ray 2.60 on two busy cores (bundled pair,
2026-11-24): 200 completions of 48 tokens, 8 at a time, while a replica is killed by SIGKILL, and again while its
server is. Ray repeats no request that a replica has begun, so what is in it as it dies is answered with 500: 4
requests each time. Clients that repeat, as OpenAI's package does twice by itself, lost none of 200 (3 and 4 were sent
again). Texts of equal prompts were equal, a new replica went on from what the dead one had saved, and the states
merged have the sums of both.
"""

import asyncio
import fcntl
import os
import socket
import subprocess
from collections.abc import Mapping
from itertools import count
from pathlib import Path

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

COMMAND = os.environ.get("ADAPTSPEC", "adaptspec")
WITH_PARENT = ("setpriv", "--pdeathsig", "TERM")  # a replica that is killed takes its server with it
STATE = Path(os.environ.get("STATE", "state"))
# Of one connection, and set anew for the next; all other headers go through.
OWN = {"connection", "content-length", "date", "host", "keep-alive", "server", "te", "trailer", "transfer-encoding"}


@serve.deployment(num_replicas=2, max_ongoing_requests=256, health_check_period_s=1, graceful_shutdown_timeout_s=60)
class Server:
    """One server, on a port and in a state directory of its own."""

    async def __init__(self, state: str) -> None:
        self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False)
        for number in count():
            with socket.create_server(("127.0.0.1", 0)) as free:
                self._port = free.getsockname()[1]
            place = Path(state, str(number))
            self._process = subprocess.Popen(
                [*WITH_PARENT, COMMAND, "serve", "--port", str(self._port), "--state-dir", str(place)]
            )
            if await self._answers():
                self._watch = asyncio.create_task(self._end_with_server())
                return
            if not _taken(place):  # else another replica has it: the next one then
                await self._client.close()
                raise RuntimeError(f"the server has ended with {self._process.returncode}, and says why above")

    async def __call__(self, request: Request) -> StreamingResponse:
        """Requests and answers go through as they are, and as they come."""
        url = f"http://127.0.0.1:{self._port}{request.url.path}?{request.url.query}"
        answer = await self._client.request(
            request.method, url, data=await request.body(), headers=_passed(request.headers)
        )
        return StreamingResponse(answer.content.iter_any(), answer.status, _passed(answer.headers))

    async def __del__(self) -> None:
        """The server saves what it has learned, and ends."""
        self._watch.cancel()
        self._process.terminate()
        await asyncio.to_thread(self._process.wait)
        await self._client.close()

    async def _end_with_server(self) -> None:
        """A replica that fails at once would be the least busy, and so draw all requests, until Ray finds it ill."""
        await asyncio.to_thread(self._process.wait)
        os._exit(1)

    async def _answers(self) -> bool:
        while self._process.poll() is None:
            try:
                async with self._client.get(f"http://127.0.0.1:{self._port}/health") as answer:
                    if answer.status == 200:
                        return True
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.2)
        return False


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in OWN}


def _taken(place: Path) -> bool:
    """Whether another server holds its lock."""
    try:
        with open(place / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


app = Server.bind(str(STATE))
