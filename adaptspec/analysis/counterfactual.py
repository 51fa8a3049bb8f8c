"""What a round shows of the chains that a drafter proposed in it, or would have proposed had it drafted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaptspec.arrays import BoolArray, FloatArray, IntArray
from adaptspec.rounds import RoundRecord

_UNBOUND = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Counterfactual:
    """A drafter's chain against the tokens of the target, per row, all [B].

    The first `seen` tokens were compared, of which `kept` agreed before the first that did not. `available` bounds the
    draft: the drafter proposed no further token (an n-gram drafter without a match). `open_end`: all that was seen
    agreed, the drafter had more, and what would have come next is unknown. `ran`: the drafter drafted in the round;
    else it was scored, or nothing is known.
    """

    ran: BoolArray
    seen: IntArray
    kept: IntArray
    available: IntArray
    open_end: BoolArray

    @classmethod
    def of(cls, record: RoundRecord, drafter: int) -> Counterfactual:
        """Of a drafter in the round's numbers: from what ran, else from what was scored.

        Of drafts that branched, their main chains count. A request that ended within its accepted draft kept what it
        emitted, less the target's token.
        """
        chain, main = record.chains(drafter), record.main_chains()
        # A draft without entropies counts as one that no stop rule has cut: if it is short of its depth, the drafter
        # had no further token.
        silent = np.isnan(main.entropy).all(axis=1)
        short = np.where(chain.ran, silent & (chain.drafted < main.depths), chain.drafted < main.emitted)
        ran_out = chain.known & short
        ended = main.emitted <= main.accepted
        return cls(
            ran=chain.ran,
            seen=chain.drafted,
            kept=np.where(ended, np.minimum(chain.accepted, np.maximum(main.emitted - 1, 0)), chain.accepted),
            available=np.where(ran_out, chain.drafted, _UNBOUND),
            open_end=(chain.accepted == chain.drafted) & ~ran_out & ~(chain.ran & ended),
        )

    def accepted(self, depths: IntArray, acceptance: FloatArray) -> tuple[IntArray, FloatArray]:
        """Accepted tokens of drafts of `depths` [K], all at least 1: those known [B, K], and those expected beyond.

        `acceptance` [B, D] is the probability of each position after accepted ones; D is at least the deepest of
        `depths`.
        """
        positions = np.arange(acceptance.shape[1])
        unknown = self.open_end[:, None] & (positions >= self.seen[:, None]) & (positions < self.available[:, None])
        survival = np.where(unknown, acceptance, 1.0).cumprod(axis=1)
        expected = np.where(unknown, survival, 0.0).cumsum(axis=1)[:, depths - 1]
        return np.minimum(self.kept[:, None], depths), expected
