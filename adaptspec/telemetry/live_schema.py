"""The live feed's lists without names, by column: for the server that writes them, `adaptspec top` and the page.

Columns are only ever added at the end: who reads them takes the first ones, and meets no surprise in later versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

Columns = TypeVar("Columns", bound=NamedTuple)


class Bar(NamedTuple):
    """One round of one request; `entropy` is the mean over what was drafted, in nats, None where unknown.

    Of a draft that branched, `drafted` and `accepted` are tokens along a path, the longest and the accepted one;
    `nodes` are all that were verified, of which drafters other than `drafter` proposed `others`. The first `straight`
    accepted tokens are on the main chain, the rest beside it. `levels` counts nodes by depth, None of a chain.
    """

    depth: int
    drafted: int
    accepted: int
    emitted: int
    drafter: int
    reason: int
    entropy: float | None
    nodes: int
    straight: int
    others: int
    levels: list[int] | None


class DrafterSums(NamedTuple):
    """What a drafter did in one second: first in the rounds of requests that it was to draft for.

    `nodes` are the tokens that it proposed in any round, and `kept` those of them that were emitted.
    """

    rounds: int
    drafted: int
    accepted: int
    nodes: int
    kept: int


class TaskSums(NamedTuple):
    """What requests of a task did in one second: `rounds` and `drafting` count rounds of requests."""

    rounds: float
    drafting: float
    drafted: float
    accepted: float
    emitted: float
    entropy_sum: float
    entropy_count: float
    nodes: float


class Compared(NamedTuple):
    """What speculation earned in one second.

    Over rounds that are compared with plain decoding: tokens, their seconds, and seconds without speculation; over
    those that are compared with the fixed depth that is best so far: their seconds, and those at it.
    """

    tokens: float
    seconds: float
    off_seconds: float
    best_compared_seconds: float
    best_seconds: float


COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "round": Bar._fields,
        "drafter": DrafterSums._fields,
        "task": TaskSums._fields,
        "compared": Compared._fields,
    }
)


def read(kind: type[Columns], values: Sequence[Any]) -> Columns:
    """A list that the feed wrote, by column."""
    return kind._make(values[: len(kind._fields)])


def is_known(columns: Mapping[str, Sequence[str]]) -> bool:
    """Whether a feed that says these columns can be read."""
    return all(tuple(columns.get(name, ()))[: len(known)] == known for name, known in COLUMNS.items())
