"""When the draft of an engine is left out altogether, and when it is tried again.

A draft that was left out in a step has a hole in its cache for good: those of the step have no drafts until they end.
So what is off can only be tried on requests that come later, and these must be read whole.
"""

from __future__ import annotations

# Steps without drafts after which the draft sleeps: a hole is for good, and off may be short. Fewer end a try. One with
# drafts makes up for some without.
_OFF_LASTS, _TRY, _MAKES_UP = 32, 16, 4
# Steps that it sleeps until who comes is tried, at first and at most: a try in vain reads along for some forty.
_FIRST_SLEEP, _LONGEST_SLEEP = 64, 1024


class Skipping:
    """The draft is awake, or asleep and left out. Having slept enough it wakes for the next request that comes, and all
    after it. It sleeps twice as long each time, until it was awake for as long as it had slept.
    """

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self._asleep = False
        self._off = 0  # steps in which somebody might have drafted and nobody did
        self._since = 0  # the step when it woke or fell asleep
        self._sleep = _FIRST_SLEEP

    def keeps(self, step: int) -> bool:
        """Whether one who comes in this step may draft."""
        if self._asleep and step - self._since >= self._sleep:
            self._asleep, self._off, self._since = False, _OFF_LASTS - _TRY, step
        return not self._asleep

    def falls_asleep(self, step: int, *, drafts: bool, able: bool) -> bool:
        """Whether from this step on nobody who is here may draft. `able`: somebody of this step might have."""
        self._off = max(self._off - _MAKES_UP, 0) if drafts else self._off + able
        if not self._allowed or self._asleep or self._off < _OFF_LASTS:
            return False
        awake = step - self._since
        self._sleep = _FIRST_SLEEP if awake >= self._sleep else min(2 * self._sleep, _LONGEST_SLEEP)
        self._asleep, self._since = True, step
        return True
