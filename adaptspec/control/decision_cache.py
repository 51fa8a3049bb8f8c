"""Reuse of decisions: a round with the same signals as an earlier one runs by the earlier decision.

A small model runs a round in a millisecond. Deciding and learning anew would take a tenth of it.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.control.acceptance import CONFIDENCE_BINS
from adaptspec.control.policy import BatchSignals
from adaptspec.decision import Decision

# Each so many decisions, the most rounds that may share one grow by one: early rounds are the most informative.
_WARMUP = 16
_DECAY, _MAX_RATIO = 0.05, 3.0  # weight of a new duration in its mean; a longer one is a stall of the machine
UNDECIDED = -1  # in place of a policy's number, for a row that it has not decided for
_CHANGED = 8  # a decision is adapted if at most one request in so many is new, and at most one in so many is gone


class RoundRows(NamedTuple):
    """The rows of a round, as far as policies read them; all [B].

    `requests` are numbers that no two requests share. Context, position and cache gap are left out: they change with
    every round, and by little.
    """

    requests: IntArray
    policies: IntArray
    tasks: IntArray
    limits: IntArray  # up to the deepest draft of any policy
    thresholds: FloatArray  # confidence that a request itself wants drafts to stop below; NaN: the policy's


class _Reusable(NamedTuple):
    """A decision without lookups, for batches of which few requests differ."""

    rows: RoundRows
    decision: Decision
    order: IntArray  # positions of its rows [B] by the numbers of their requests
    usual: dict[tuple[int, int], int | None]  # by policy and task: the position of a row with their usual depth


class DecisionCache:
    """Decisions by the signals that they were made for.

    A decision is reused by rounds with equal signals until `clear`: after so many rounds that deciding once and
    learning from one record take at most `share` of their time, and after `max_rounds` at the latest. Policies may have
    learned of started requests meanwhile. Nothing is reused if the clock shows no time for deciding, as in a
    simulation.
    """

    def __init__(self, share: float = 0.01, max_rounds: int = 8) -> None:
        self._share, self._max_rounds = share, max_rounds
        self._decisions: dict[tuple[bytes, ...], Decision] = {}
        self._without_lookups: dict[bool, _Reusable] = {}  # the latest of rounds without and with prompts
        self._rounds_left = 0  # rounds until policies are to learn
        self._num_decided = 0
        self._means: dict[str, float] = {}  # decayed, in seconds

    @property
    def expired(self) -> bool:
        """Whether policies are to learn before the next decision."""
        return self._rounds_left <= 0

    def repeat(self) -> bool:
        """Count one more round; whether it may run by the latest decision, if its signals are the same."""
        if self.expired:
            return False
        self._rounds_left -= 1
        return True

    def reused(self, signals: BatchSignals, rows: RoundRows) -> Decision | None:
        """Count the round; the decision that it reuses, or None: a new one is to be made."""
        if not self.repeat():
            return None
        known = self._decisions.get(_key(signals, rows))
        if known is None and len(rows.requests) >= _CHANGED and not np.count_nonzero(signals.found):
            latest = self._without_lookups.get(signals.prefill_tokens > 0)
            known = None if latest is None else _adapted(latest, rows)
        return known

    def store(self, signals: BatchSignals, rows: RoundRows, decision: Decision) -> None:
        """Keep a decision that was made for a round. A trial or a measurement is for this round alone."""
        if decision.once:
            self.clear()
            return
        if not self._decisions:
            self._rounds_left = self._num_rounds() - 1
        self._decisions[_key(signals, rows)] = decision
        if not np.count_nonzero(signals.found):
            reusable = _Reusable(rows, decision, np.argsort(rows.requests), {})
            self._without_lookups[signals.prefill_tokens > 0] = reusable

    def clear(self) -> None:
        """Forget all decisions: policies learn, or change."""
        self._decisions.clear()
        self._without_lookups.clear()
        self._rounds_left = 0

    def observe(self, what: Literal["decide", "learn", "round"], seconds: float) -> None:
        """A decision, learning from a record, or a round took this long. Values that are no duration are ignored."""
        if not 0.0 < seconds < math.inf:
            return
        self._num_decided += what == "decide"
        mean = self._means.get(what, seconds)
        self._means[what] = mean + _DECAY * (min(seconds, _MAX_RATIO * mean) - mean)

    def _num_rounds(self) -> int:
        """Rounds that the next decisions may serve, the first one included."""
        overhead = self._means.get("decide", 0.0) + self._means.get("learn", 0.0)
        allowed = max(self._share * self._means.get("round", 0.0), 1e-9)
        most = min(self._max_rounds, 1 + self._num_decided // _WARMUP)
        return max(1, min(most, math.ceil(overhead / allowed)))


def _key(signals: BatchSignals, rows: RoundRows) -> tuple[bytes, ...]:
    """What policies read of a round: equal for rounds that one decision may serve.

    Confidence in lookups is compared by the bins of `Calibration`. Policies and tasks are those of the requests.
    """
    stated = signals.stated
    return (
        rows.requests.tobytes(),
        rows.limits.tobytes(),
        signals.found.tobytes(),
        b"" if stated is None else np.floor(stated * CONFIDENCE_BINS).tobytes(),
        b"prefill" if signals.prefill_tokens else b"",
    )


def _adapted(latest: _Reusable, rows: RoundRows) -> Decision | None:
    """The decision of an earlier round for a batch of which few requests differ; None: too many do.

    A new request runs by the row with the most common depth of its policy and task. Depths are lowered to the limits.
    No policy learns from a new request's row of this round, as none decided for it: its policy number is `UNDECIDED`.
    """
    before, decision, order, _ = latest
    found = np.searchsorted(before.requests, rows.requests, sorter=order)
    index: IntArray = order[np.minimum(found, len(order) - 1)]
    new = np.flatnonzero(before.requests[index] != rows.requests)
    num_gone = len(before.requests) - (len(index) - len(new))
    if max(len(new), num_gone) * _CHANGED > len(index):
        return None
    for row in new.tolist():
        usual = _usual_row(latest, rows.policies.item(row), rows.tasks.item(row))
        if usual is None or not np.isnan(rows.thresholds[row]):
            return None
        index[row] = usual
    adapted = decision.take(index).within(rows.limits)
    adapted.policies[new], adapted.requests[new] = UNDECIDED, rows.requests[new]
    return adapted


def _usual_row(latest: _Reusable, policy: int, task: int) -> int | None:
    """The position of a row with the most common depth of a policy and task; None: there is no such row."""
    before, decision, _, usual = latest
    if (policy, task) not in usual:
        alike = np.flatnonzero(np.isnan(before.thresholds) & (before.policies == policy) & (before.tasks == task))
        depths = decision.depths[alike]
        most = np.argmax(depths == np.bincount(depths).argmax()) if len(alike) else None
        usual[policy, task] = None if most is None else alike.item(most)
    return usual[policy, task]
