"""The base of algorithms: how deep each row should draft, before guards and limits.

To add one: one file with its class and its spec, a line in the registry, a test and a YAML.
"""

from __future__ import annotations

import bisect
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from adaptspec.arrays import EMPTY_INT, FloatArray, IntArray
from adaptspec.control.algorithms.round_terms import ModelTerms
from adaptspec.control.cost_model import CostModel
from adaptspec.control.language.schema import Part
from adaptspec.control.policy import BatchSignals, Learner
from adaptspec.decision import Expected, Reason, StopTable, Union
from adaptspec.rounds import RoundRecord


@dataclass(frozen=True, eq=False)
class ExpectedValue:
    """What drafting is expected to earn and cost in the coming round: stop rules weigh one more token by it.

    `goodput` is in tokens per second for the whole batch, times in seconds. `models` has at least one: the terms of
    each drafter that runs a model. `drafting` says how many rows the plan has drafting with each.
    """

    goodput: float
    verify: FloatArray  # [n] additional seconds of verifying n more tokens than rows
    models: tuple[ModelTerms, ...]
    drafting: Mapping[int, int]
    weight: FloatArray | None = None  # [B] what a token of each row counts; None: all the same

    def expected(self, depths: IntArray, drafter: IntArray) -> Expected:
        """What it says of a round at these depths [B], by the models' numbers [B]."""
        at, first = np.arange(len(depths)), self.models[0]
        accepted = first.gains[at, np.minimum(depths, first.gains.shape[1] - 1)]
        for model in self.models[1:]:
            own = model.gains[at, np.minimum(depths, model.gains.shape[1] - 1)]
            accepted = np.where(drafter == model.drafter_id, own, accepted)
        return Expected(self.goodput, accepted)


@dataclass(eq=False, slots=True)
class Choice:
    """Depths asked for (0 <= depth <= limits) and why; `value` where the algorithm knows costs and acceptance.

    `drafter` [B] indexes the policy's drafters (left out: the first everywhere). `stop` is one that the algorithm
    brings itself, in place of the policy's rule.
    """

    depths: IntArray
    reasons: IntArray
    value: ExpectedValue | None = None
    drafter: IntArray = field(default_factory=lambda: EMPTY_INT)
    stop: StopTable | None = None
    expected: Expected | None = None  # where it is not what `value` says of these depths
    union: Union | None = None  # lookups in addition to the drafts of models
    once: bool = False  # for one round alone, such as a trial
    memo: object = None  # what the algorithm wants back with the round's record, see `Algorithm.learn`

    def __post_init__(self) -> None:
        if not len(self.drafter):
            self.drafter = np.zeros_like(self.depths)

    def within(self, limits: IntArray) -> Choice:
        """The choice itself where no limit [B] binds, which is nearly always; else one held to the limits."""
        if np.count_nonzero(self.depths > limits):
            union = None if self.union is None else self.union.within(limits)
            return replace(self, depths=np.minimum(self.depths, limits), union=union)
        return self


class Algorithm(Learner):
    """Called on one thread, as `Policy` is. What is not overridden keeps nothing."""

    max_depth: int  # the deepest draft it will ever ask for

    def __init_subclass__(cls) -> None:
        """Raises TypeError for a `learn` that takes no memo: else each round of a package's algorithm would fail."""
        super().__init_subclass__()
        try:
            inspect.signature(cls.learn).bind("self", "record", "memo")
        except TypeError as error:
            raise TypeError(f"{cls.__qualname__}.learn must be learn(self, record, memo=None): {error}") from error

    @property
    def search_depth(self) -> int | None:
        return None

    def start(self, row: int) -> None:
        """A request begins decoding in `row`."""

    def finish(self, row: int) -> None:
        """The request in `row` has ended."""

    def choose(self, signals: BatchSignals) -> Choice:
        """Choose depths. An algorithm that is off sees to it that it learns when to come back."""
        raise NotImplementedError

    def learn(self, record: RoundRecord, memo: object = None) -> None:
        """Learn from a round of this policy's rows.

        `memo` is that of the choice that it ran by; None where the algorithm chose none, as where a guard is off.
        """


class OneDepth(Algorithm):
    """Base of algorithms with one depth for all rows of a round."""

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self._last: tuple[object, Choice] | None = None

    def alike(self, signals: BatchSignals, depth: int, reason: Reason) -> Choice:
        """`depth` for every row, as far as its limit allows."""
        asked, last = (len(signals.rows), depth, reason), self._last
        if last is None or last[0] != asked:
            depths, reasons = (np.full(len(signals.rows), value, dtype=np.int64) for value in (depth, int(reason)))
            last = self._last = asked, Choice(depths, reasons)
        return last[1].within(signals.limits)


@dataclass(frozen=True)
class Parts:
    """What an algorithm is built from: the machine's costs and what the rest of the policy says."""

    cost: CostModel
    max_rows: int
    tasks: int  # the known tasks and task 0, unknown
    tiers: tuple[int, ...]  # depths allowed in addition to 0, ascending
    drafters: tuple[str, ...]  # preferred first
    stops: bool  # a stop rule will cut drafts short
    max_width: int = 1  # children of a node of a draft at most; 1: drafts are chains


class AlgorithmSpec(Part):
    """`choose:` of an algorithm. A subclass has a field `algorithm`, a Literal of its name, and what else it takes."""

    takes_tiers: ClassVar[bool] = False  # a policy may have tiers or max-depth next to it
    takes_drafters: ClassVar[bool] = False  # it chooses among several drafters
    has_value: ClassVar[bool] = False  # its choices have a `value`
    default_tiers: ClassVar[tuple[int, ...]] = tuple(range(8))
    default_stop: ClassVar[str] = "none"  # the stop rule of a policy that names none
    guarded: ClassVar[bool] = True  # a policy is never slower than plain decoding, unless it says otherwise

    def build(self, parts: Parts) -> Algorithm:
        """The algorithm, once for each policy that names it."""
        raise NotImplementedError

    def default_drafters(self, available: Sequence[str]) -> Sequence[str]:
        """Of the drafters that are `available`, those that it uses where the policy names none."""
        return available if self.takes_drafters else available[:1]

    def kept_to(self, depths: Sequence[int]) -> AlgorithmSpec:  # noqa: ARG002 - for those that have depths of their own
        """The same without depths that are none of these (ascending, 0 first): it has the next lower ones instead."""
        return self


def lowered(depth: int, depths: Sequence[int]) -> int:
    """The deepest of some depths (ascending, 0 first) that is no deeper."""
    return depths[bisect.bisect_right(depths, depth) - 1]
