"""What a server's live feed tells, over a connection that heals by itself."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from adaptspec.errors import ServerError
from adaptspec.telemetry.live_schema import Bar, is_known, read

SILENCE_SECONDS = 15.0  # the server has a beat of five
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 10.0
_POLICY_SECONDS = 10.0  # between two looks at the policy in force: it may be replaced
HISTORY_SECONDS = 300
KEPT_ROUNDS = 400  # of one request: more than any terminal is wide
KEPT_REQUESTS = 50

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Connection:
    """How the feed is doing: `state` is one of connecting, live, lost; `text` says more."""

    state: str
    text: str = ""


@dataclass(frozen=True)
class Policy:
    """The policy that requests get unless they ask for another: its name, and its file."""

    name: str
    description: str = ""
    yaml: str = ""


@dataclass
class SeenRequest:
    """A request: what the feed says of it, its latest rounds, and whether it has ended."""

    told: dict[str, Any]
    bars: deque[Bar] = field(default_factory=lambda: deque(maxlen=KEPT_ROUNDS))
    ended: bool = False


@dataclass
class LiveState:
    """What one server has told: a snapshot, and every update since. `clock` is its clock beyond ours, in seconds."""

    server: Json
    reasons: Mapping[int, Json]
    load: Json
    seconds: deque[Json]
    running: dict[str, SeenRequest]
    recent: deque[SeenRequest]
    earnings: Json | None
    missed: int
    clock: float

    @classmethod
    def of(cls, told: Json) -> LiveState:
        state = cls(
            server=told["server"],
            reasons={reason["code"]: reason for reason in told["reasons"]},
            load=told["load"],
            seconds=deque(told["seconds"], maxlen=HISTORY_SECONDS),
            running={},
            recent=deque((SeenRequest(dict(one), ended=True) for one in told["recent"]), maxlen=KEPT_REQUESTS),
            earnings=told.get("earnings"),
            missed=told["missed_rounds"],
            clock=told["now"] - time.time(),
        )
        for one in told["running"]:
            seen = state.running[one["id"]] = SeenRequest({**one, "rounds": None})
            seen.bars.extend(_bars(one.get("rounds", [])))
        return state

    def update(self, told: Json) -> None:
        self.clock = told["now"] - time.time()
        self.load, self.missed = told["load"], told["missed_rounds"]
        self.earnings = told.get("earnings") or self.earnings
        for second in told["seconds"]:
            self._replace(second)
        for one in told["started"]:
            self.running[one["id"]] = SeenRequest({**one, "tokens": 0})
        for name, rounds in told["rounds"].items():
            seen = self.running.get(name)
            if seen is not None:
                bars = _bars(rounds)
                seen.bars.extend(bars)
                seen.told["tokens"] += sum(bar.emitted for bar in bars)
        for one in told["finished"]:
            before = self.running.pop(one["id"], None)
            self.recent.append(SeenRequest(dict(one), before.bars if before else deque(), ended=True))

    def now(self) -> float:
        """Seconds since 1970, by the server's clock."""
        return time.time() + self.clock

    def _replace(self, second: Json) -> None:
        """A second that is told again replaces what was said of it."""
        for i in range(len(self.seconds) - 1, max(-1, len(self.seconds) - 4), -1):
            if self.seconds[i]["at"] == second["at"]:
                self.seconds[i] = second
                return
        self.seconds.append(second)


def _bars(rounds: Sequence[Sequence[Any]]) -> list[Bar]:
    return [read(Bar, values) for values in rounds]


class Feed:
    """What is known of one server. `state` is None until it has answered once; it outlives a lost connection."""

    def __init__(
        self,
        url: str,
        key: str | None,
        changed: Callable[[], None] = lambda: None,
        *,
        silence: float = SILENCE_SECONDS,
        first_wait: float = _FIRST_WAIT,
    ) -> None:
        """`changed` is called, on the event loop, whenever there is something new to draw. A connection is lost after
        `silence` seconds without a word; the feed asks again after `first_wait` seconds, and later ever less often.
        """
        self._timeout = aiohttp.ClientTimeout(total=None, connect=5.0, sock_read=silence)
        self._first_wait = first_wait
        self.url = url.rstrip("/")
        self.state: LiveState | None = None
        self.policy: Policy | None = None
        self.connection = Connection("connecting")
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._changed = changed

    async def once(self) -> None:
        """Ask for a snapshot and the policy, and no more. Raises ServerError where no server answers as one."""
        async with self._session() as session:
            try:
                self.state = self._state_of(await self._json(session, "/live/snapshot"))
                await self._ask_policy(session)
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                raise ServerError(f"{self.url}: no answer ({_words(error)}); is the server running there?") from error
            self._say("live")

    async def follow(self) -> None:
        """Follow the feed for ever, through restarts. Raises ServerError where there is no use in asking again."""
        wait = self._first_wait
        async with self._session() as session:
            while True:
                try:
                    async with aclosing(self._events(session)) as events:
                        async for name, told in events:
                            wait = self._first_wait
                            await self._take(session, name, told)
                    why = "the server ended the connection"
                except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                    why = _words(error)
                self._say("lost", f"{why}; trying again in {wait:.0f} s" if wait >= 1 else f"{why}; trying again")
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)

    async def follow_policy(self) -> None:
        async with self._session() as session:
            while True:
                await asyncio.sleep(_POLICY_SECONDS)
                try:
                    await self._ask_policy(session)
                except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
                    continue  # `follow` says so already

    def _session(self) -> aiohttp.ClientSession:
        # Lines of a snapshot are longer than what aiohttp reads at most: events are cut by hand.
        return aiohttp.ClientSession(headers=self._headers, timeout=self._timeout)

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
            self.state = self._state_of(told)
            await self._ask_policy(session)
        elif name == "update" and self.state is not None:
            self.state.update(told)
        self._say("live")

    async def _ask_policy(self, session: aiohttp.ClientSession) -> None:
        if self.state is not None:
            told = await self._json(session, f"/v1/policies/{self.state.server['default_policy']}")
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

    def _state_of(self, told: Json) -> LiveState:
        if not is_known(told.get("columns", {})):
            raise ServerError(f"{self.url}: its live feed is of another version; use the `adaptspec` that it runs")
        return LiveState.of(told)

    def _say(self, state: str, text: str = "") -> None:
        self.connection = Connection(state, text)
        self._changed()


def _words(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientResponseError):
        return f"status {error.status}"
    if isinstance(error, (asyncio.TimeoutError, aiohttp.ServerTimeoutError)):
        return "it is silent"
    return str(error) or type(error).__name__
