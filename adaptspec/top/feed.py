"""A connection to a server's live feed that heals by itself. Knows HTTP and server-sent events; it draws nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import aiohttp

from adaptspec.errors import ServerError
from adaptspec.top.picture import Connection, Picture, Policy

SILENCE_SECONDS = 15.0  # the server has a beat of five
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 10.0
_POLICY_SECONDS = 10.0  # between two looks at the policy in force: it may be replaced
_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=5.0, sock_read=SILENCE_SECONDS)


class Feed:
    """What is known of one server. `picture` is None until it has answered once; it outlives a lost connection."""

    def __init__(self, url: str, key: str | None, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called, on the event loop, whenever there is something new to draw."""
        self.url = url.rstrip("/")
        self.picture: Picture | None = None
        self.policy: Policy | None = None
        self._connection = Connection("connecting")
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._changed = changed

    @property
    def connection(self) -> Connection:
        """How it goes."""
        return self._connection

    async def once(self) -> None:
        """Ask for a snapshot and the policy, and no more.

        Raises:
            ServerError: there is no server, or it does not answer as one; the message says what to do.
        """
        async with self._session() as session:
            try:
                self.picture = Picture.of(await self._json(session, "/live/snapshot"))
                await self._ask_policy(session)
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                raise ServerError(f"{self.url}: no answer ({_words(error)}); is the server running there?") from error
            self._say("live")

    async def follow(self) -> None:
        """Follow the feed for ever, through restarts of the server.

        Raises:
            ServerError: it answers, but there is no use in asking again.
        """
        wait = _FIRST_WAIT
        async with self._session() as session:
            while True:
                try:
                    async with aclosing(self._events(session)) as events:
                        async for name, told in events:
                            wait = _FIRST_WAIT
                            await self._take(session, name, told)
                    why = "the server ended the connection"
                except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                    why = _words(error)
                self._say("lost", f"{why}; trying again in {wait:.0f} s" if wait >= 1 else f"{why}; trying again")
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)

    async def follow_policy(self) -> None:
        """Look at the policy in force again and again."""
        async with self._session() as session:
            while True:
                await asyncio.sleep(_POLICY_SECONDS)
                try:
                    await self._ask_policy(session)
                except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
                    continue  # `follow` says so already

    def _session(self) -> aiohttp.ClientSession:
        # Lines of a snapshot are longer than what aiohttp reads at most: events are cut by hand.
        return aiohttp.ClientSession(headers=self._headers, timeout=_TIMEOUT)

    async def _events(self, session: aiohttp.ClientSession) -> AsyncGenerator[tuple[str, Any], None]:
        async with session.get(f"{self.url}/live/events") as response:
            await self._check(response)
            waiting = b""
            async for piece in response.content.iter_any():
                *whole, waiting = (waiting + piece).split(b"\n\n")
                for block in whole:
                    name, _, data = block.partition(b"\ndata: ")
                    yield name.removeprefix(b"event: ").decode(), json.loads(data)

    async def _take(self, session: aiohttp.ClientSession, name: str, told: Any) -> None:
        if name == "snapshot":
            self.picture = Picture.of(told)
            await self._ask_policy(session)
        elif name == "update" and self.picture is not None:
            self.picture.update(told)
        self._say("live")

    async def _ask_policy(self, session: aiohttp.ClientSession) -> None:
        if self.picture is not None:
            told = await self._json(session, f"/v1/policies/{self.picture.server['default_policy']}")
            self.policy = Policy(told["id"], told["description"], told["yaml"])

    async def _json(self, session: aiohttp.ClientSession, path: str) -> Any:
        async with session.get(self.url + path) as response:
            await self._check(response)
            return await response.json()

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.status in (401, 403):
            raise ServerError(f"{self.url}: it wants a key; give --api-key, or set ADAPTSPEC_API_KEY")
        if response.status == 404:
            raise ServerError(f"{self.url}: there is no live feed; give the URL of an AdaptSpec server of this version")
        response.raise_for_status()

    def _say(self, state: str, text: str = "") -> None:
        self._connection = Connection(state, text)
        self._changed()


def _words(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientResponseError):
        return f"status {error.status}"
    if isinstance(error, (asyncio.TimeoutError, aiohttp.ServerTimeoutError)):
        return "it is silent"
    return str(error) or type(error).__name__
