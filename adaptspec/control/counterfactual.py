"""What a round that was run tells of another way to have run it: other depths, another stop, another drafter.

Knows one round's arrays; it estimates nothing that the round itself does not tell, beyond the acceptance it is given.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaptspec.control.policy import Decision
from adaptspec.types import BoolArray, FloatArray, IntArray, RoundRecord


@dataclass(frozen=True)
class Counterfactual:
    """What is known, per row, of the tokens some drafter would have proposed. All [B] or [B, D].

    The first `seen` of them were compared with what the target wrote, and `kept` of those agreed before the first that
    did not. `open`: all that were seen agreed, and what would have come next is unknown. `most` bounds the draft where
    the drafter had nothing more to say (a lookup without a match). Confidence and entropy are NaN where unknown.
    """

    seen: IntArray
    kept: IntArray
    open: BoolArray
    most: IntArray
    confidence: FloatArray
    entropy: FloatArray

    @classmethod
    def of(cls, record: RoundRecord, drafter: IntArray, deepest: int) -> Counterfactual:
        """Of the drafters [B] in the round's own numbers: from what ran, else from what was scored in hindsight.

        `deepest` is D, the most tokens that will be asked about.
        """
        ran = (record.drafter == drafter) & (record.depths > 0)
        silent = np.isnan(record.confidence).all(axis=1)
        nothing = np.zeros_like(record.drafted)
        seen, kept = np.where(ran, record.drafted, nothing), np.where(ran, record.accepted, nothing)
        ran_out = ran & silent & (record.drafted < record.depths)
        if record.shadow is not None and record.shadow_drafted is not None:
            at = np.arange(len(drafter))
            agreed, said = record.shadow[drafter, at], record.shadow_drafted[drafter, at]
            scored = ~ran & (agreed >= 0)
            seen, kept = np.where(scored, said, seen), np.where(scored, agreed, kept)
            ran_out = ran_out | (scored & (said < record.emitted))
        return cls(
            seen=seen,
            kept=kept,
            open=(kept == seen) & ~ran_out,
            most=np.where(ran_out, seen, np.iinfo(np.int64).max),
            confidence=_widened(record.confidence, ran, deepest),
            entropy=_widened(record.entropy, ran, deepest),
        )

    def drafted(self, decision: Decision) -> IntArray:
        """Tokens [B] that would have been drafted under a decision, its stop rule heeded."""
        wished = np.minimum(decision.depths, self.most)
        if decision.stop is None:
            return wished
        drafted = np.zeros_like(wished)
        active, step = np.flatnonzero(wished), 0
        stop = decision.stop.begin(active)
        while len(active):
            drafted[active] += 1
            sure, entropy = self.confidence[active, step], self.entropy[active, step]
            step += 1
            going = wished[active] > step
            if going.any():
                going &= stop(step, active, sure, entropy)
            active = active[going]
        return drafted

    def accepted(
        self, drafted: IntArray, acceptance: FloatArray, dice: FloatArray
    ) -> tuple[IntArray, FloatArray, IntArray]:
        """Of so many drafted tokens: how many surely, how many more expected, and how many more by a throw of `dice`.

        `acceptance` [B, D] is conditional, by position; `dice` [B, D] in [0, 1).
        """
        surely = np.minimum(self.kept, drafted)
        positions = np.arange(acceptance.shape[1])
        beyond = self.open[:, None] & (positions >= self.seen[:, None]) & (positions < drafted[:, None])
        survival = np.cumprod(np.where(beyond, acceptance, 1.0), axis=1)
        held = np.cumprod(np.where(beyond, dice < acceptance, True), axis=1)
        expected: FloatArray = np.where(beyond, survival, 0.0).sum(axis=1)
        drawn: IntArray = np.where(beyond, held, 0).sum(axis=1)
        return surely, expected, drawn


def _widened(values: FloatArray, known: BoolArray, deepest: int) -> FloatArray:
    """[B, D], NaN where unknown."""
    wide: FloatArray = np.full((len(values), deepest), np.nan)
    width = min(deepest, values.shape[1])
    wide[known, :width] = values[known, :width]
    return wide
