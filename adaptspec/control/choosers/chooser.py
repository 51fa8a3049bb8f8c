"""The protocol of a chooser: how deep each row should draft, before guards and limits.

To add an algorithm: one file with its class and its spec, a line in the registry, a test and a YAML.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from adaptspec.control.arrays import within
from adaptspec.control.choosers.planning import ModelTerms
from adaptspec.control.copies import changed
from adaptspec.control.cost import CostTable
from adaptspec.control.labels import Labels
from adaptspec.control.learned import check_nothing
from adaptspec.control.policy import BatchSignals, Policy
from adaptspec.draft_tables import StopTable
from adaptspec.types import Expected, FloatArray, IntArray, Provenance, Reason, RoundRecord


@dataclass(frozen=True, eq=False)
class Outlook:
    """What a chooser that knows costs and acceptance expects of the round: stop rules weigh one more token by it.

    `goodput` is in tokens per second for the whole batch, times in seconds. `models` has at least one: the terms of
    each drafter that runs a model. `drafting` says how many rows the plan has drafting with each.
    """

    goodput: float
    verify: FloatArray  # [n] the verify pass with n more tokens than rows
    models: tuple[ModelTerms, ...]
    drafting: Mapping[int, int]

    def expected(self, depths: IntArray, drafter: IntArray | None) -> Expected:
        """What it says of a round at these depths [B], by the models' numbers (None: the first everywhere)."""
        at, first = np.arange(len(depths)), self.models[0]
        accepted = first.gains[at, np.minimum(depths, first.gains.shape[1] - 1)]
        for model in self.models[1:] if drafter is not None else ():
            own = model.gains[at, np.minimum(depths, model.gains.shape[1] - 1)]
            accepted = np.where(drafter == model.which, own, accepted)
        return Expected(self.goodput, accepted)


@dataclass(frozen=True, eq=False)
class Choice:
    """Depths wished for (0 <= depth <= limits) and why; `outlook` where the chooser has one.

    `drafter` [B] indexes the policy's drafters (None: the first everywhere). `stop` is one that the chooser brings
    itself, in place of the policy's rule. `provenance` is told by choosers that explore.
    """

    depths: IntArray
    reasons: IntArray
    outlook: Outlook | None = None
    drafter: IntArray | None = None
    stop: StopTable | None = None
    provenance: Provenance | None = None
    expected: Expected | None = None  # where it is not what the outlook says of these depths

    def within(self, limits: IntArray) -> Choice:
        """The choice itself where no limit [B] binds, which is nearly always; else one held to the limits."""
        return self if within(self.depths, limits) else changed(self, depths=np.minimum(self.depths, limits))


class Chooser(Protocol):
    """One algorithm. Called once per round on one thread; `learn` only takes notes."""

    @property
    def max_depth(self) -> int:
        """The deepest draft it will ever ask for."""

    def start(self, row: int) -> None:
        """A request begins decoding in `row`."""

    def finish(self, row: int) -> None:
        """The request in `row` has ended."""

    def choose(self, signals: BatchSignals) -> Choice:
        """Choose depths. A chooser that is off sees to it that it learns when to come back."""

    def learn(self, record: RoundRecord) -> None:
        """Take note of a round of this chooser's rows."""

    def learned(self) -> dict[str, FloatArray]:
        """What is worth keeping across restarts: copies of decayed sums, by name; {} where there is nothing.

        Additive: the states of two replicas, added name by name, are the state of both. So a prior stays out of it.
        """

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """Go on from what `learned` once gave, in place of what has been seen so far. Called before any row starts.

        Raises:
            StateError: not of these shapes, or not possible; nothing has changed then.
        """


class Plain:
    """Base of choosers that keep nothing per row and nothing across restarts: one depth and reason for all rows.

    A choice is the same object while nothing changes, since making one takes as long as all else that a simple rule
    does in a round.
    """

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self._alike: tuple[int, Reason, Choice] | None = None

    def start(self, row: int) -> None:
        """Nothing is kept per row."""

    def finish(self, row: int) -> None:
        """Nothing is kept per row."""

    def learn(self, record: RoundRecord) -> None:
        """Nothing is learned."""

    def learned(self) -> dict[str, FloatArray]:
        """Nothing."""
        return {}

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        check_nothing(learned)

    def alike(self, signals: BatchSignals, depth: int, reason: Reason) -> Choice:
        """`depth` for every row, as far as its limit allows."""
        size, known = len(signals.rows), self._alike
        if known is None or known[0] != depth or known[1] is not reason or len(known[2].depths) != size:
            depths: IntArray = np.full(size, depth, dtype=np.int64)
            known = self._alike = depth, reason, Choice(depths, np.full(size, int(reason), dtype=np.int64))
        return known[2].within(signals.limits)


@dataclass(frozen=True)
class Parts:
    """What a chooser may be built from: the machine's costs and what the rest of the policy says."""

    cost: CostTable
    max_rows: int
    tasks: int  # the known tasks and task 0, unknown
    tiers: tuple[int, ...]  # depths allowed beside 0, ascending
    drafters: tuple[str, ...]  # preferred first
    stops: bool  # a stop rule will cut drafts short
    policy: Callable[[str], Policy] | None = None  # builds one that the file names as a `PolicyName`
    labels: Labels = field(default_factory=Labels)  # names of tasks and API keys by their numbers
