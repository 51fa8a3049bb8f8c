"""What a round that was run says of the chains that some drafter would have proposed in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaptspec.arrays import BoolArray, IntArray
from adaptspec.rounds import RoundRecord


@dataclass(frozen=True)
class Counterfactual:
    """Per row, all [B]: how much of a drafter's chain was compared with what the target wrote, and how much agreed.

    The first `seen` tokens were compared, and `kept` of those agreed before the first that did not. `open`: all that
    were seen agreed, and what would have come next is unknown. `most` bounds the draft where the drafter proposed
    nothing more (n-grams without a match).
    """

    seen: IntArray
    kept: IntArray
    open: BoolArray
    most: IntArray

    @classmethod
    def of(cls, record: RoundRecord, drafter: int) -> Counterfactual:
        """Of a drafter in the round's numbers: from what ran, else from what was scored.

        Of drafts that branched, their main chains count.
        """
        chain, main = record.chains(drafter), record.main_chains()
        # A drafter without entropies has no distribution, so no stop rule applies: its draft ends where it proposes no
        # further token.
        silent = np.isnan(main.entropy).all(axis=1)
        ended = np.where(chain.ran, silent & (chain.drafted < main.depths), chain.drafted < main.emitted)
        ran_out = chain.known & ended
        return cls(
            seen=chain.drafted,
            kept=chain.accepted,
            open=(chain.accepted == chain.drafted) & ~ran_out,
            most=np.where(ran_out, chain.drafted, np.iinfo(np.int64).max),
        )
