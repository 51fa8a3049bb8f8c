"""Trying what is off: never starved by what it is believed to cost, never dearer than a share of the time.

Knows rows, seconds and tokens; which drafter is tried is its owner's affair.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaptspec.types import FloatArray, IntArray, RoundRecord

# Plain rounds' time that may be lost on tries at once.
_MOST = 3.0
# Tokens, emitted while no model drafts, after which all rows are tried whatever is expected; twice as many each time.
_FIRST_WAIT, _LONGEST = 64, 65536
# Where tries are in vain this much of the share is used, in the end.
_LEAST = 0.25


@dataclass(frozen=True)
class TryCosts:
    """Seconds that tries of these rows [N] would take, as far as is known."""

    fixed: float  # whoever tries
    each: float
    reading: FloatArray  # [N] to catch up first
    plain: float  # a round without drafts


class Tries:
    """An allowance of time for rows that are off to draft one token, and when to use it.

    Rows are tried as far as the allowance goes, those that failed least first. When no model has drafted for some
    tokens all are tried, as soon as the last tries are paid off: what a wrong cost table makes too dear to be tried is
    tried all the same. A try is paid for by what it took, less what it won. Rows that win go on until they lose.
    """

    def __init__(self, share: float) -> None:
        """`share` of the time may be lost."""
        self._share = share
        self._eager = 1.0
        self._allowance = 0.0
        self._idle, self._wait = 0, _FIRST_WAIT
        self._again: IntArray = np.zeros(0, dtype=np.int64)  # rows that won, or have read a part of what they missed
        self._tried: IntArray = self._again
        self._cost = 0.0
        self._needed = 0.0  # with less than this none of the rows can be tried

    def forget(self, row: int) -> None:
        """A new request is in `row`."""
        self._again = self._again[self._again != row]
        self.renew()

    def renew(self) -> None:
        """What is known of the rows has changed."""
        self._needed = 0.0

    def note(self, seconds: float, plain: float, idle: int) -> None:
        """A round took so long, a plain one `plain`; `idle` tokens were emitted without a model, 0 if one drafted."""
        self._allowance = min(self._allowance + self._share * self._eager * seconds, _MOST * plain)
        self._idle = self._idle + idle if idle else 0

    def possible(self, least: float) -> bool:
        """Whether any row may be tried where that takes more than `least` seconds."""
        return max(least, self._needed) < self._allowance or self.due or self.going

    @property
    def going(self) -> bool:
        """Whether rows of the last try go on."""
        return len(self._again) > 0

    @property
    def due(self) -> bool:
        """Whether all rows are to be tried, whatever that is expected to cost."""
        return self._idle >= self._wait and self._allowance > 0.0

    @property
    def overdue(self) -> bool:
        """Whether even rows that another drafter drafts for are to be tried."""
        return self.due and self._idle >= 2 * self._wait

    def begin(self, rows: IntArray, failed: FloatArray, costs: TryCosts) -> IntArray:
        """Which of these rows [N], by place, are tried now; they have failed so often."""
        again = np.isin(rows, self._again)
        order = np.lexsort((costs.reading, failed, ~again))
        spent = costs.fixed + np.cumsum((costs.each + costs.reading)[order])
        # Rows that have failed wait until there is more to spend: a new request may differ from the last.
        needed = spent + (failed[order] >= 1.0) * costs.plain
        enough = (needed <= self._allowance) | again[order]
        count = len(rows) if enough.all() else int(np.argmin(enough))
        if self.due:
            self._wait, self._idle, count = min(2 * self._wait, _LONGEST), 0, len(rows)
        self._needed = 0.0 if count else float(needed[0])
        who: IntArray = order[:count]
        self._tried, self._cost = rows[who], costs.fixed + costs.each * count
        return who

    def won(self, record: RoundRecord, reading: float, token: float) -> bool:
        """Pay for the tries of a round, in which catching up took so long, and a token is worth so much; whether any

        won.
        """
        mine = np.isin(record.rows, self._tried)
        kept = np.minimum(record.accepted, np.maximum(record.emitted - 1, 0)) * mine
        unread = mine & (record.drafted == 0) & (record.caught_up > 0)
        won = float(kept.sum()) * token
        spent = self._cost + reading
        self._allowance -= spent - won
        self._again = record.rows[(kept > 0) | unread]
        if unread.any():
            return False
        self._eager = min(1.0, max(_LEAST, self._eager * 0.8 ** ((spent - won) / max(spent, won, 1e-12))))
        if won:
            self._wait = _FIRST_WAIT
        return won > 0.0
