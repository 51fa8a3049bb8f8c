"""Episodes: for how long a context keeps its arm, and how often it may switch.

Knows rounds, contexts and arms as numbers; not why an arm was picked.
"""

from __future__ import annotations

import numpy as np

from adaptspec.control.bandits.learner import Pick
from adaptspec.types import BoolArray, FloatArray, IntArray

# Switches a context may save up, and earns per round: at most 44 in its first 1,000 rounds and 40 in any later.
# Going to explore takes two, since there is a way back.
_MOST, _PER_ROUND = 4.0, 0.04
# An arm that is picked again is kept for twice as long, up to so many times the dwell: what is settled costs no time.
_LONGEST = 4


class Episodes:
    """Arms are locked for `dwell` rounds, longer if picked again; those explored from off for `probe`. [contexts] each.

    Coming from an arm that drafts, another one loses little and is told by noisier rounds: a full dwell says more.
    """

    def __init__(self, contexts: int, dwell: int, probe: int, beat: int, off: int | None = None) -> None:
        """Episodes end on multiples of `beat` rounds, so that those of many contexts end together."""
        self._dwell, self._probe, self._beat, self._off = dwell, probe, beat, off
        self.arms: IntArray = np.full(contexts, -1, dtype=np.int64)
        self.propensities: FloatArray = np.ones(contexts)
        self.exploring: BoolArray = np.zeros(contexts, dtype=np.bool_)
        self._length: IntArray = np.zeros(contexts, dtype=np.int64)
        self._due: IntArray = np.zeros(contexts, dtype=np.int64)
        self._began: IntArray = np.zeros(contexts, dtype=np.int64)
        self._bucket: FloatArray = np.full(contexts, np.nan)  # of the batch it began in; NaN: it has no arm of its own
        self._saved: FloatArray = np.full(contexts, _MOST)

    def start(self, context: int, now: int, arm: int) -> None:
        """A new request begins with an arm (-1: none yet), and chooses its own on the next beat."""
        self.arms[context], self.propensities[context], self.exploring[context] = arm, 1.0, False
        self._saved[context], self._began[context], self._length[context] = _MOST, now, 0
        self._due[context] = (now // self._beat + 1) * self._beat if arm >= 0 else now
        self._bucket[context] = np.nan

    def due(self, contexts: IntArray, now: int, bucket: int) -> IntArray:
        """Those of the contexts whose episode is over, or was begun at quite another batch size."""
        return contexts[(self._due[contexts] <= now) | (np.abs(self._bucket[contexts] - bucket) > 1.0)]

    def end(self, contexts: IntArray) -> int:
        """The round at which the first of these is over."""
        return int(self._due[contexts].min())

    def rounds(self, contexts: IntArray, now: int) -> IntArray:
        """How long each has played its arm."""
        age: IntArray = now - self._began[contexts]
        return age

    def saved(self, contexts: IntArray, now: int) -> FloatArray:
        """Switches that each may make now."""
        found: FloatArray = np.minimum(self._saved[contexts] + _PER_ROUND * self.rounds(contexts, now), _MOST)
        return found

    def begin(self, contexts: IntArray, pick: Pick, now: int, bucket: int, rows: FloatArray) -> None:
        """Begin episodes, each context with `rows` rows: many rows tell in few rounds whether an arm is any good."""
        old = self.arms[contexts]
        again = (old == pick.arms) & ~pick.exploring
        self._saved[contexts] = self.saved(contexts, now) - ((old >= 0) & (old != pick.arms))
        doubled = np.minimum(2 * self._length[contexts], _LONGEST * self._dwell)
        tried = np.where(old == (-1 if self._off is None else self._off), self._probe, self._dwell)
        probe = np.maximum(1, np.ceil(tried / np.sqrt(rows)).astype(np.int64))
        length = np.where(again, np.maximum(doubled, self._dwell), np.where(pick.exploring, probe, self._dwell))
        self._due[contexts] = -(-(now + length) // self._beat) * self._beat
        self._length[contexts], self._began[contexts], self._bucket[contexts] = length, now, bucket
        self.arms[contexts], self.propensities[contexts] = pick.arms, pick.propensities
        self.exploring[contexts] = pick.exploring
