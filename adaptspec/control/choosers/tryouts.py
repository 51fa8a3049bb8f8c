"""Trying again what is off, on an allowance: a bounded share of time, whatever the draft is worth.

Knows seconds and which rows are off; not why.
"""

from __future__ import annotations

import math

import numpy as np

from adaptspec.types import FloatArray

_LONG = 2**31


class Allowance:
    """Time that may be spent on drafts expected to lose. Earned as a share of the time that passes.

    A try that emits tokens earns back what they are worth, so good news pays for the next try at once; failures lower
    the share (down to a quarter), successes raise it again. Bounds the cost of exploring at `share` of all time.

    Where tries cost next to nothing time alone would allow them all the time: after each failure nothing is tried for
    some rounds, the more the more have failed, up to `rest`.
    """

    _FAILED, _FLOOR = 0.8, 0.25
    # In rounds of plain decoding: saved up at most, and given at the start.
    _MOST, _FIRST, _FRESH = 3.0, 1.0, 0.25

    def __init__(self, share: float, rest: int = 0) -> None:
        self._share, self._rest = share, rest
        self._eagerness = 1.0
        self._seconds = 0.0
        self._resting = 0
        self._started = False

    def grant(self, plain: float, rows: int) -> None:
        """A new request has come, which may differ from the last: worth part of a try, as one of `rows`.

        Less where tries failed: short requests come as often as others are tried.
        """
        self._seconds = min(self._seconds + self._eagerness * self._FRESH * plain / rows, self._MOST * plain)
        self._resting -= self._rest // rows

    def earn(self, plain: float, rounds: int = 1) -> None:
        """Rounds passed in which something that could draft was off; `plain` is a plain round's time."""
        if not self._started:
            self._started = True
            self._seconds = self._FIRST * plain
        self._resting -= rounds
        self._seconds = min(self._seconds + rounds * self._share * self._eagerness * plain, self._MOST * plain)

    def rounds_until(self, seconds: float, plain: float) -> int:
        """After how many rounds like these a try of this cost may be made, if it is ever; `_LONG` if not."""
        each = self._share * self._eagerness * plain
        if not each or seconds > self._MOST * plain:
            return _LONG
        return max(self._resting, math.ceil((seconds - self._seconds) / each), 0)

    def affords(self, seconds: float) -> bool:
        """Whether a try of this cost may be made now."""
        return self._share > 0.0 and self._resting <= 0 and self._seconds >= seconds

    def affordable(self, spent: FloatArray) -> int:
        """How many tries may be made now, if the first n cost `spent[n - 1]` (ascending)."""
        return int(np.searchsorted(spent, self._seconds, side="right")) if self._share > 0.0 else 0

    def settle(self, cost: float, worth: float) -> None:
        """A try has been made: what it cost, and what its accepted tokens were worth, in seconds >= 0."""
        self._seconds += worth - cost
        # By what it lost or won: tries that keep a token more often than not may still lose.
        lost = (cost - worth) / max(cost, worth, 1e-12)
        self._eagerness = min(1.0, max(self._FLOOR, self._eagerness * self._FAILED**lost))
        resting = self._rest * (1.0 - self._eagerness) / (1.0 - self._FLOOR)
        self._resting = round(resting) if worth < cost else 0
