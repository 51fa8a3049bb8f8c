"""A store that is fed by hand: nothing is handled before somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from adaptspec.request import Request
from adaptspec.results import Completion
from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.metrics import Metrics
from adaptspec.telemetry.request_store import Clock, RequestStore

T = TypeVar("T")


class SetClock(Clock):
    """A clock that is set by hand, in seconds since 1970."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at

    def offset(self) -> float:
        return 0.0


def made(
    reader: Callable[[RequestStore], T], *, rows: int = 8, drafters: Sequence[str] = (), clock: Clock | None = None
) -> tuple[RequestStore, T]:
    """A store that has started, and who reads it."""
    store = RequestStore(pause=3600.0, clock=clock)
    read = reader(store)
    store.start(rows, drafters)
    return store, read


def counted(*entries: RoundRecord | tuple[Request, Completion], **wanted: object) -> Metrics:
    """Metrics of rounds and of requests that have ended."""
    store, metrics = made(lambda store: Metrics(store, **wanted))  # type: ignore[arg-type]
    for entry in entries:
        if isinstance(entry, RoundRecord):
            store.emit(entry)
        else:
            store.finished(*entry)
    return metrics
