"""The Policy protocol: what a policy sees before a round, what it answers, and what it learns from.

Knows arrays of numbers, not requests, tensors or clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeGuard, TypeVar, runtime_checkable

import numpy as np

from adaptspec.draft_tables import StopTable, TemperatureTable
from adaptspec.types import Expected, FloatArray, IntArray, Provenance, RoundRecord, nobody

T = TypeVar("T")


@dataclass(frozen=True)
class BatchSignals:
    """The decoding rows of the coming round, one entry per row (B of them).

    `rows` are the engine's row numbers: stable while a request runs, reused afterwards. `limits`
    is the depth each row may not pass (the request's ceiling, its remaining tokens, the context's
    room). `lag` [drafters, B] is how many tokens each drafter is behind, beyond the usual one or two: what
    drafting with it would have to catch up first. What a policy sees has its own drafters first, in its order (those
    of others may follow). `offered` [drafters, B] is how many tokens a lookup would draft now, within the limits: known
    beforehand since looking is free. It is 0 for drafters that cannot tell, and left 0 where nobody looks
    (see `OfferWatcher`). `position` counts the tokens a row has emitted. `beside` counts rows that decode in the same
    round under other policies; `free_memory` is the share of the cache that no row holds. `keys` are the names of API
    keys by their numbers (0: none that a policy names), None where no policy names any. `tasks`, `keys`
    and `number`, the decision's, are given by the controller.
    """

    rows: IntArray
    tasks: IntArray  # 0 = unknown
    context: IntArray
    limits: IntArray
    lag: IntArray
    offered: IntArray
    position: IntArray
    prefill_tokens: int = 0
    beside: int = 0
    free_memory: float = 1.0
    keys: IntArray | None = None
    number: int = 0

    @property
    def least_limit(self) -> int:
        """The least of the rows' limits: nearly always above what a policy would draft."""
        if len(self.limits) == 1:
            return int(self.limits.item())
        # `functools.cached_property` takes a lock, which is longer than looking at one row.
        known: int | None = self.__dict__.get("_least_limit")
        if known is None:
            known = self.__dict__["_least_limit"] = int(self.limits.min())
        return known

    @property
    def batch_size(self) -> int:
        """Number of decoding rows."""
        return len(self.rows)

    @property
    def round_size(self) -> int:
        """Number of rows that decode in this round, under whatever policy."""
        return len(self.rows) + self.beside

    def take(self, index: IntArray) -> BatchSignals:
        """The same signals for some of the rows, by position in the batch; the others are beside them."""
        return BatchSignals(
            self.rows[index],
            self.tasks[index],
            self.context[index],
            self.limits[index],
            self.lag[:, index],
            self.offered[:, index],
            self.position[index],
            self.prefill_tokens,
            self.round_size - len(index),
            self.free_memory,
            None if self.keys is None else self.keys[index],
            self.number,
        )


@dataclass(frozen=True, eq=False)
class Decision:
    """Depth, reason and drafter per row, and when drafts stop before their depth (None: never). Data alone.

    `drafter` indexes the policy's `drafters`; the controller translates it to the engine's. `provenance` is told by
    policies that explore. `temperature` None: tokens are drawn from the draft's distribution as it is.
    `watched` are the drafters to score where they do not draft, if that is free (see `RoundRecord.shadow`): the
    controller fills it in, in the engine's numbers. `expected` is told by policies that estimate. `number`,
    and the `tasks` and `policies` of the rows [B] are the controller's: the round's record bears them, however late.
    """

    depths: IntArray
    reasons: IntArray
    drafter: IntArray
    stop: StopTable | None = None
    provenance: Provenance | None = None
    temperature: TemperatureTable | None = None
    watched: tuple[int, ...] = ()
    expected: Expected | None = None
    number: int = 0
    tasks: IntArray = field(default_factory=nobody)
    policies: IntArray = field(default_factory=nobody)


class Awaited(Generic[T]):
    """What is to be known of decisions when their outcomes come, by number. Outcomes may never come: the oldest go."""

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._known: dict[int, T] = {}

    def put(self, number: int, known: T) -> None:
        """Keep what is known of a decision."""
        if len(self._known) >= self._most:
            self._known.pop(next(iter(self._known)))
        self._known[number] = known

    def take(self, number: int) -> T | None:
        """What was kept of a decision, which is forgotten now; None where nothing was."""
        return self._known.pop(number, None)


class Policy(Protocol):
    """Decides the depths of a batch and learns from rounds. Called on one thread, once each per round.

    `learn` only takes notes: it never switches anything. `start` and `finish` bracket the life of a
    request in a row; state of a row must not outlive `finish`.
    """

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names of the drafters it uses, preferred first."""

    @property
    def max_depth(self) -> int:
        """The deepest draft it will ever ask for."""

    def start(self, row: int) -> None:
        """A request begins decoding in `row`; what it is comes with the signals of its rounds."""

    def finish(self, row: int) -> None:
        """The request in `row` has ended."""

    def decide(self, signals: BatchSignals) -> Decision:
        """Choose depths (0 <= depth <= limits) for these rows."""

    def learn(self, record: RoundRecord) -> None:
        """Take note of a round in which this policy's rows ran (and only its rows are listed).

        `drafter` and `shadow` count this policy's drafters first, in its order, as `BatchSignals.lag` does.
        Seconds, steps and tokens of the verify pass are those of the whole round.
        """

    def learned(self) -> dict[str, FloatArray]:
        """What is worth keeping across restarts; see `Chooser.learned`."""

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """Go on from it; see `Chooser.restore`."""


@runtime_checkable
class OfferWatcher(Protocol):
    """A policy, or a part of one, that may look at `BatchSignals.offered`; for all others the engine leaves it zero."""

    @property
    def watches_offers(self) -> bool:
        """Whether it ever does."""

    @property
    def looking(self) -> bool:
        """Whether it does in the coming round. If not, its lookups are not scored either."""


def watches_offers(part: object) -> TypeGuard[OfferWatcher]:
    """Whether a policy, or a part of one, may look at offers."""
    return isinstance(part, OfferWatcher) and part.watches_offers


class OffersOfParts:
    """`OfferWatcher` for what leaves rounds to policies of its own: it looks if one of them does."""

    def __init__(self, policies: Iterable[Policy]) -> None:
        self._offered = [policy for policy in policies if watches_offers(policy)]

    @property
    def watches_offers(self) -> bool:
        """See `OfferWatcher`."""
        return bool(self._offered)

    @property
    def looking(self) -> bool:
        """See `OfferWatcher`."""
        return any(policy.looking for policy in self._offered)


def whole_provenance(told: Sequence[tuple[IntArray, Provenance]], rows: int) -> Provenance | None:
    """What policies told of their own rows, for the whole batch."""
    if not told:
        return None
    nobody, unknown = np.full(rows, -1, dtype=np.int64), np.full(rows, np.nan)
    whole = Provenance(nobody, unknown, nobody.copy(), unknown.copy())
    for mine, part in told:
        whole.arms[mine], whole.propensities[mine] = part.arms, part.propensities
        whole.draws[mine], whole.worth[mine] = part.draws, part.worth
    return whole


def whole_expected(hopes: Sequence[tuple[IntArray, Expected]], rows: int) -> Expected | None:
    """What policies expected of their own rows, for the whole batch."""
    if not hopes:
        return None
    whole = Expected(np.nan, np.full(rows, np.nan))
    for mine, part in hopes:
        whole.accepted[mine] = part.accepted
    return whole
