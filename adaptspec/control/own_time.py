"""What deciding and learning take of an engine's thread, and for how many steps a decision is kept to make it little.

Right after a model has run they take several times what they take by themselves: it leaves nothing of theirs in the
caches.
"""

from __future__ import annotations

import math

# The share of a step's time that they may take, and the steps that a decision serves at most.
_SHARE, _MOST = 0.015, 8
_PATIENCE = 32  # decisions after which one more step may be served by each: at first every step tells much
_FADE, _STALL = 0.05, 3.0  # what is new counts so much, and what a machine's stall makes of it so many times the usual


class OwnTime:
    """Decayed means of seconds, of three things: deciding, learning and a whole step."""

    def __init__(self) -> None:
        self._usual: dict[str, float] = {}
        self._decisions = 0

    def note(self, what: str, seconds: float) -> None:
        """One of `decide`, `learn` and `step` took so long. What is no time is left out."""
        if not 0.0 <= seconds < math.inf:
            return
        self._decisions += what == "decide"
        usual = self._usual.get(what) or seconds
        self._usual[what] = usual + _FADE * (min(seconds, _STALL * usual) - usual)

    @property
    def steps(self) -> int:
        """That a decision is to serve, itself among them."""
        own, step = self._usual.get("decide", 0.0) + self._usual.get("learn", 0.0), self._usual.get("step", 0.0)
        most = min(_MOST, 1 + self._decisions // _PATIENCE)
        return 1 if own <= _SHARE * step else most if own >= most * _SHARE * step else math.ceil(own / (_SHARE * step))
