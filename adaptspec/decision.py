"""What is decided of one round: for each row how deep to draft and with which drafter, when to stop, what to submit.

Plain data, no torch. The tables of a decision are arrays, so that numpy evaluates them here and a kernel on a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import nan
from typing import NamedTuple

import numpy as np

from adaptspec.arrays import EMPTY_INT, BoolArray, FloatArray, IntArray


class Reason(IntEnum):
    """Why a request runs a round at its depth; the numbers appear in journals, the labels in metrics and traces."""

    POLICY = 0  # the algorithm's free choice
    FIXED = 1  # the policy knows only this depth
    EXPLORE = 2  # a trial of a depth or drafter that the estimates do not ask for, to learn
    PROBE = 3  # speculation is off, this round tests whether it pays again
    OFF = 4  # the algorithm expects drafting to lose
    GUARD = 5  # the guard switched speculation off, or has plain decoding measured for one round
    CEILING = 6  # batch too large, no room, or the task's bound
    REQUEST = 7  # the request's own max_depth
    DWELL = 9  # kept because the last switch was too recent (8 was never given, and stays free)

    @property
    def label(self) -> str:
        """The name in figures, metrics and traces."""
        return self.name.lower()


REASON_WORDS: Mapping[Reason, str] = {
    Reason.POLICY: "its own choice: what earns most, by what it has seen",
    Reason.FIXED: "it knows only this depth",
    Reason.EXPLORE: "to learn: a trial of a depth or drafter that its estimates do not ask for",
    Reason.PROBE: "off, and tried again to see whether drafting pays by now",
    Reason.OFF: "no drafts: they were expected to lose",
    Reason.GUARD: "drafting measured slower than plain decoding, or plain decoding is measured again",
    Reason.CEILING: "no room for more: the answer's end, the batch, memory, or the task's own bound",
    Reason.REQUEST: "the request's own max_depth",
    Reason.DWELL: "kept: the last change was too recent",
}


# Entropy in nats from which a draft counts as unsure: that of an even choice among seven tokens.
UNSURE = 2.0
# Values of a column in rows without its bound.
_UNBOUND = {"entropy": np.inf, "calibration": 1.0, "unstated": 1.0, "step": -1.0}  # others: 0


@dataclass(frozen=True, eq=False)
class StopTable:
    """After which drafted token each of B rows stops.

    A row continues after its token j if the token passes column j - 1 of every bound that is set. The last column also
    holds for all later tokens.

    - `confidence`: lower bound of the probability that the draft gave the token.
    - `entropy`: upper bound of the entropy of the distribution that it was drawn from, in nats.
    - `survival`: P(all tokens so far are accepted) must be above this. It is the product over these tokens of
      `calibration` [B, bins], P(a token is accepted) by equal bins of confidence, or of `unstated` [B, D] where the
      draft states no confidence. A draft step is paid once for all rows that take it: the sum over them of
      (P - `survival`) x `worth`, the tokens of one more step if all so far are kept, must exceed `step`, its price in
      tokens.

    The five arrays of `survival` are set together. An unknown value passes the bounds of confidence and entropy. The
    token that a bound is compared with is submitted in any case, so every table is exact under every lossless
    verification.
    """

    confidence: FloatArray | None = None
    entropy: FloatArray | None = None
    survival: FloatArray | None = None
    calibration: FloatArray | None = None
    unstated: FloatArray | None = None
    worth: FloatArray | None = None
    step: FloatArray | None = None

    def chances(self, step: int, rows: IntArray, confidence: FloatArray) -> FloatArray:
        """P(token `step` of a main chain is accepted) [N], for tokens of `rows` [N] with this confidence [N].

        The product over a chain's tokens is what `continues` compares with `survival`; 1 without these bounds.
        """
        if self.calibration is None or self.unstated is None:
            return np.ones(len(rows))
        unknown, bins = np.isnan(confidence), self.calibration.shape[1]
        bin_index = np.minimum(np.where(unknown, 0.0, confidence) * bins, bins - 1).astype(np.int64)
        return np.where(unknown, _column(self.unstated, step)[rows], self.calibration[rows, bin_index])

    def continues(
        self,
        step: int,
        rows: IntArray,
        confidence: FloatArray,
        entropy: FloatArray,
        *,
        survival: FloatArray,
        main: BoolArray | None = None,
    ) -> BoolArray:
        """After which nodes [N] at depth `step` (from 1) drafting goes on; each argument has their values [N].

        `survival` is P(the node and all before it are accepted), `main` marks main chains (None: all are). Pass only
        nodes that may go on by their depth: a step is paid once for all of them. Off main chains drafting goes on only
        if the row has bounds of `survival`: without a price no node is known to earn more than it costs.
        """
        going: BoolArray = np.ones(len(rows), dtype=np.bool_)
        if self.confidence is not None:
            going &= ~(confidence < _column(self.confidence, step)[rows])
        if self.entropy is not None:
            going &= ~(entropy > _column(self.entropy, step)[rows])
        if self.survival is None or self.unstated is None or self.worth is None or self.step is None:
            return going if main is None else going & main
        minimum, worth, price = (_column(values, step)[rows] for values in (self.survival, self.worth, self.step))
        above = survival - minimum
        gain = above * worth
        if main is not None:
            # The worth of more steps is that of the chain; off the chain the next token counts at most. Rows
            # without bounds of `survival` have `worth` 0, so they gain nothing off the chain.
            side = survival * np.minimum(self.unstated[rows, 0], worth) - minimum * worth
            above, gain = np.where(main, above, side), np.where(main, gain, side)
        going &= above > 0.0
        return going & (float(gain[going].sum()) > price)

    @staticmethod
    def stacked(parts: Sequence[tuple[IntArray, StopTable | None]], rows: int) -> StopTable | None:
        """One table for `rows` rows from tables for the rows at these positions; None where nothing stops.

        A part's table has a line for each of its positions, or one for every row.
        """
        known = [(at, table) for at, table in parts if table is not None and len(at)]
        if len(known) == 1 and len(known[0][0]) == rows:
            return known[0][1]
        widths: dict[str, int] = {}
        for name, values in (column for _, table in known for column in table.columns().items()):
            widths[name] = max(widths.get(name, 0), values.shape[1])
        whole: dict[str, FloatArray] = {
            name: np.full((rows, width), _UNBOUND.get(name, 0.0)) for name, width in widths.items()
        }
        for at, table in known:
            for name, values in table.columns().items():
                own = values if len(values) == len(at) else values[at]
                whole[name][at, : own.shape[1]], whole[name][at, own.shape[1] :] = own, own[:, -1:]
        return StopTable(**whole) if known else None

    def take(self, index: IntArray) -> StopTable:
        """The table for other rows [N]: each stops as the row at this position does."""
        return StopTable(**{name: values[index] for name, values in self.columns().items()})

    def columns(self) -> dict[str, FloatArray]:
        """The arrays that are there, by name, in their order."""
        return {name: values for name, values in self.__dict__.items() if values is not None}


def _column(values: FloatArray, step: int) -> FloatArray:
    column: FloatArray = values[:, min(step, values.shape[1]) - 1]
    return column


@dataclass(frozen=True, eq=False)
class TreeTable:
    """Which candidates a drafter submits in addition to its first choice, for each of B rows.

    After a node, the candidate of rank r (0 is the first choice) is submitted if its chance of acceptance is above
    `floor`: the product of the chances along its path, its own being `calibration` [B, ranks, bins] by equal bins of
    confidence (the last rank holds for all later ones). A node has at most `width` [B] children, a row `nodes` [B].
    Where the stop table has bounds of `survival`, the same bounds say from which nodes off the main chain drafts go on.
    """

    width: IntArray
    nodes: IntArray
    floor: FloatArray  # [B]
    calibration: FloatArray

    @staticmethod
    def stacked(parts: Sequence[tuple[IntArray, TreeTable | None]], rows: int) -> TreeTable | None:
        """One table for `rows` rows, from those for the rows at these positions; rows of None draft chains."""
        known = [(at, table) for at, table in parts if table is not None]
        if not known:
            return None
        ranks, bins = (max(table.calibration.shape[axis] for _, table in known) for axis in (1, 2))
        ones, floor = np.ones(rows, dtype=np.int64), np.zeros(rows)
        whole = TreeTable(ones, ones * 0, floor, np.ones((rows, ranks, bins)))
        for at, table in known:
            whole.width[at], whole.nodes[at], whole.floor[at] = table.width, table.nodes, table.floor
            own = np.repeat(table.calibration, bins // table.calibration.shape[2], axis=2)
            whole.calibration[at, : own.shape[1]] = own
            whole.calibration[at, own.shape[1] :] = own[:, -1:]
        return whole

    def take(self, index: IntArray) -> TreeTable:
        """The table for other rows [N]: each branches as the row at this position does."""
        return TreeTable(self.width[index], self.nodes[index], self.floor[index], self.calibration[index])

    def within(self, depths: IntArray) -> IntArray:
        """Depths [E >= B], those of the first B rows lowered to what the ceilings on nodes leave to chains."""
        rows = len(self.nodes)
        max_depths = np.where(self.width > 1, self.nodes, depths[:rows])
        return np.append(np.minimum(depths[:rows], max_depths), depths[rows:])


def draft_temperatures(ends: FloatArray, entropy: FloatArray) -> FloatArray:
    """Temperatures [N] of the next drafted tokens, on top of their requests' own: below 1 sharpens, above 1 flattens.

    low + (high - low) * min(entropy / 2, 1), where `ends` [N, 2] are low and high, and `entropy` [N] (nats) is that of
    the distribution that the token would be drawn from at 1. It is known before the token is drawn, so every lossless
    verification stays exact: it gets the distribution that the token was really drawn from.
    """
    low, high = ends.T
    return np.asarray(low + (high - low) * np.minimum(entropy / UNSURE, 1.0))


def stacked_temperatures(parts: Sequence[tuple[IntArray, FloatArray | None]], rows: int) -> FloatArray | None:
    """The ends [rows, 2] of `draft_temperatures` from those of parts of the rows; None: all are drawn as they are."""
    known = [(at, ends) for at, ends in parts if ends is not None]
    if not known:
        return None
    whole: FloatArray = np.ones((rows, 2))
    for at, ends in known:
        whole[at] = ends
    return whole


@dataclass(frozen=True, eq=False)
class Union:
    """Lookups whose nodes are added to the drafts of models: their drafters [B] and depths [B] (0: none)."""

    drafter: IntArray
    depths: IntArray

    def within(self, limits: IntArray) -> Union:
        """The union at no more than these depths [B]."""
        return Union(self.drafter, np.minimum(self.depths, limits))

    def take(self, index: IntArray) -> Union:
        """The union for some of the rows, by position in the batch."""
        return Union(self.drafter[index], self.depths[index])

    def where(self, drafting: BoolArray) -> Union:
        """The union for these rows [B] alone."""
        return Union(self.drafter, np.where(drafting, self.depths, 0))

    @staticmethod
    def stacked(parts: Sequence[tuple[IntArray, Union | None]], rows: int) -> Union | None:
        """One union for `rows` rows from unions for the rows at these positions; None where nothing is added."""
        known = [(at, union) for at, union in parts if union is not None]
        if not known:
            return None
        whole = Union(np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64))
        for at, union in known:
            whole.drafter[at], whole.depths[at] = union.drafter, union.depths
        return whole


@dataclass(frozen=True)
class Expected:
    """What a policy expected of a round before it ran.

    `goodput` is in tokens per second for the whole round (NaN where several policies shared it). `accepted` [B] are the
    tokens expected to be kept, stop rule and side nodes included (NaN where unknown); where a stop rule decides the
    depth, those of the planned depth, not of the upper limit in `Decision.depths`. `other` is the goodput expected of
    the rejected choice: plain decoding where the round drafts, else the best drafts.
    """

    goodput: float
    accepted: FloatArray  # [B]
    other: float = nan

    def take(self, index: IntArray) -> Expected:
        return replace(self, accepted=self.accepted[index])


class PolicyPart(NamedTuple):
    """What one policy decided of a round: `number` is its entry in `Decision.policies`.

    `memo` is private to the policy: it comes back with every record of the decision, however late.
    """

    number: int
    policy: object
    memo: object


@dataclass(frozen=True, eq=False, slots=True)
class Decision:
    """Depth, reason and drafter of each of B rows, and when drafts stop before their depth (None: never).

    `drafter` indexes the policy's `drafters`; the controller translates it to the engine's. `expected` is set by
    policies that estimate. `draft_temperature` [B, 2] are the ends of `draft_temperatures`; None: tokens are drawn from
    the draft's distribution as it is. `tree` None: drafts are chains. `once`: for a single round, such as a measurement
    of plain decoding; any other decision may be reused. `memo` is what the policy wants back with the round's record.

    The controller completes it: `watched` are the drafters to score where they do not draft, if that is free (see
    `RoundRecord.shadow`), in the engine's numbers; `number` counts decisions from 1 (0: made without a controller);
    `tasks`, `policies` and `requests` [B] are numbers of each row's task, policy and request, and `parts` are the memos
    of the policies.
    """

    depths: IntArray
    reasons: IntArray
    drafter: IntArray
    stop: StopTable | None = None
    draft_temperature: FloatArray | None = None
    watched: tuple[int, ...] = ()
    expected: Expected | None = None
    number: int = 0
    tasks: IntArray = field(default_factory=lambda: EMPTY_INT)
    policies: IntArray = field(default_factory=lambda: EMPTY_INT)
    requests: IntArray = field(default_factory=lambda: EMPTY_INT)
    tree: TreeTable | None = None
    union: Union | None = None
    once: bool = False
    memo: object = None
    parts: tuple[PolicyPart, ...] = ()

    def take(self, index: IntArray) -> Decision:
        """The decision for other rows [N]: each runs by that of the row at this position in the batch."""
        temperature = self.draft_temperature
        return replace(
            self,
            depths=self.depths[index],
            reasons=self.reasons[index],
            drafter=self.drafter[index],
            stop=None if self.stop is None else self.stop.take(index),
            draft_temperature=None if temperature is None else temperature[index],
            expected=None if self.expected is None else self.expected.take(index),
            tasks=self.tasks[index],
            policies=self.policies[index],
            requests=self.requests[index],
            tree=None if self.tree is None else self.tree.take(index),
            union=None if self.union is None else self.union.take(index),
        )

    def within(self, limits: IntArray) -> Decision:
        """The decision at no more than these depths [B]; rows that this lowers are at their ceiling."""
        lowered = self.depths > limits
        if not np.count_nonzero(lowered):
            return self
        return replace(
            self,
            depths=np.minimum(self.depths, limits),
            reasons=np.where(lowered, int(Reason.CEILING), self.reasons),
            union=None if self.union is None else self.union.within(limits),
        )
