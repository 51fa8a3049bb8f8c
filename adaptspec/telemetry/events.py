"""Events of an engine, in order, and the `Sink` protocol that handles them.

The engine appends events to an `EventStream`; a worker hands them to sinks in batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from adaptspec.control.cost_model import CostModel
from adaptspec.request import Request
from adaptspec.results import Completion
from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.sums import RowTable

if TYPE_CHECKING:
    from adaptspec.telemetry.requests import LoggedRequest


@dataclass(slots=True)
class RequestStarted:
    """A request was admitted. `when` of every event is in seconds on the monotonic clock."""

    when: float
    request: Request


@dataclass(slots=True)
class RoundEnded:
    """A round has ended."""

    when: float
    record: RoundRecord


@dataclass(slots=True)
class RequestFinished:
    """A request has ended, admitted or not.

    `logged` is what the log has of it, which does not change any more; None without a log. The `RequestLog` sets it,
    so it is the first of the sinks.
    """

    when: float
    request: Request
    completion: Completion
    logged: LoggedRequest | None = None


@dataclass(slots=True)
class Note:
    """Anything else that a sink wants in order with the rest; other sinks skip a subject that they do not know."""

    when: float
    subject: object


@dataclass(frozen=True)
class PolicyReloaded:
    """Subject of a `Note`: a policy was replaced by a new version of the same name."""

    policy: str


Event = RequestStarted | RoundEnded | RequestFinished | Note


@dataclass(frozen=True)
class EventBatch:
    """Events in the order in which they happened.

    `wall_offset` added to `when` gives seconds since 1970; it is taken per batch, since the time of day may be set.
    `dropped` events so far found a full queue on their way to the sink. `costs` and
    `drafters` are the engine's; `costs` None: no speed-up is known.
    """

    events: Sequence[Event]
    wall_offset: float
    dropped: int = 0
    costs: CostModel | None = None
    drafters: Sequence[str] = ()

    @cached_property
    def rounds(self) -> Sequence[RoundEnded]:
        return [event for event in self.events if isinstance(event, RoundEnded)]

    @cached_property
    def table(self) -> RowTable:
        """The rounds, to be summed."""
        return RowTable([one.record for one in self.rounds], self.costs)

    @cached_property
    def finished(self) -> Sequence[RequestFinished]:
        return [event for event in self.events if isinstance(event, RequestFinished)]


class Sink(Protocol):
    """Handles batches, always on one thread at a time. An exception loses that sink its batch and nothing else."""

    def handle(self, batch: EventBatch) -> None:
        """Take in the next events."""

    def close(self, timeout: float) -> None:
        """No more batches follow: write what is left within `timeout` seconds."""
