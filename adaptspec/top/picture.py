"""What the live feed has told so far: a snapshot, and every update since. Knows the feed's JSON, and draws nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

HISTORY_SECONDS = 300
KEPT_ROUNDS = 400  # of one request: more than any terminal is wide
KEPT_REQUESTS = 50

Json = Mapping[str, Any]
Bar = Sequence[Any]  # one round of one request, by the feed's `round` columns


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
class Seen:
    """A request: what the feed says of it, its latest rounds, and whether it has ended."""

    told: dict[str, Any]
    bars: deque[Bar] = field(default_factory=lambda: deque(maxlen=KEPT_ROUNDS))
    ended: bool = False

    @property
    def id(self) -> str:
        """Its id, unique among the running ones."""
        return str(self.told["id"])


@dataclass
class Picture:
    """The state of one server. `clock` is its clock beyond ours, in seconds."""

    server: Json
    columns: Mapping[str, Mapping[str, int]]
    reasons: Mapping[int, Json]
    load: Json
    seconds: deque[Json]
    running: dict[str, Seen]
    recent: deque[Seen]
    earnings: Json | None
    missed: int
    clock: float

    @classmethod
    def of(cls, told: Json) -> Picture:
        """From a snapshot."""
        picture = cls(
            server=told["server"],
            columns={kind: {name: i for i, name in enumerate(names)} for kind, names in told["columns"].items()},
            reasons={reason["code"]: reason for reason in told["reasons"]},
            load=told["load"],
            seconds=deque(told["seconds"], maxlen=HISTORY_SECONDS),
            running={},
            recent=deque((Seen(dict(one), ended=True) for one in told["recent"]), maxlen=KEPT_REQUESTS),
            earnings=told.get("earnings"),
            missed=told["missed_rounds"],
            clock=told["now"] - time.time(),
        )
        for one in told["running"]:
            rounds = one.get("rounds", [])
            picture.running[one["id"]] = Seen({**one, "rounds": None}, deque(rounds, maxlen=KEPT_ROUNDS))
        return picture

    def update(self, told: Json) -> None:
        """Take in what has happened since."""
        self.clock = told["now"] - time.time()
        self.load, self.missed = told["load"], told["missed_rounds"]
        self.earnings = told.get("earnings") or self.earnings
        for second in told["seconds"]:
            self._replace(second)
        for one in told["started"]:
            self.running[one["id"]] = Seen({**one, "tokens": 0})
        emitted = self.columns["round"]["emitted"]
        for name, bars in told["rounds"].items():
            seen = self.running.get(name)
            if seen is not None:
                seen.bars.extend(bars)
                seen.told["tokens"] += sum(bar[emitted] for bar in bars)
        for one in told["finished"]:
            before = self.running.pop(one["id"], None)
            self.recent.append(Seen(dict(one), before.bars if before else deque(), ended=True))

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
