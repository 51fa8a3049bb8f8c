"""What one drafter would have made of every output position of recorded requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from adaptspec.types import BoolArray, FloatArray, IntArray

# A draft that never runs out of proposals reaches this far: deeper than any policy may draft.
FAR = 255
# The rank of a token that is not among a drafter's candidates, or behind the first 127 of them.
UNRANKED = 127
COUNTS, SHARES = ("run", "reach", "rank"), ("confidence", "entropy", "rejection")


@dataclass(frozen=True)
class AfterMiss:
    """How sure a drafter is of the 1st, 2nd ... S-th token that it drafts after its own wrong one, [P, S]. NaN where
    its token is right, and where nobody asked it. Stop rules look at these tokens, though none is accepted.
    """

    confidence: FloatArray
    entropy: FloatArray

    def take(self, index: IntArray) -> AfterMiss:
        return AfterMiss(self.confidence[index], self.entropy[index])


@dataclass(frozen=True)
class DraftView:
    """One drafter at P output positions: a draft of d tokens that starts at t submits min(d, reach[t]) of them
    and has min(d, run[t]) of these accepted.

    The rest is of one token at t, given the true text before it. The drafter's candidates stand in the order of its
    scores with the noise of that position, and `rank` is the place of the target's token among them: 0 where the
    drafter's own token is right. `confidence` is the share of its own token by the scores that it was chosen from,
    `top` those of its first K candidates, `entropy` that of its distribution without noise, in nats (all NaN or None
    where it does not say), `rejection` the chance sum(min(p, q)) that rejection sampling keeps its token. `after_miss`
    and `top` are None where they were not recorded; ranks that were not are `UNRANKED`.
    """

    run: IntArray  # [P]
    reach: IntArray  # [P]
    rank: IntArray  # [P]
    confidence: FloatArray  # [P]
    entropy: FloatArray  # [P]
    rejection: FloatArray  # [P]
    after_miss: AfterMiss | None = None
    top: FloatArray | None = None  # [P, K], falling

    @property
    def agreed(self) -> BoolArray:
        """Whether the drafter's token at a position, given the true text before it, is the target's, [P]."""
        return np.asarray(self.run > 0)

    @property
    def proposes(self) -> BoolArray:
        """Whether it has a token to propose at all, [P]."""
        return np.asarray(self.reach > 0)

    def take(self, index: IntArray) -> DraftView:
        """The same for some positions, whole requests at a time (runs must not be cut)."""
        return DraftView(
            **{name: getattr(self, name)[index] for name in (*COUNTS, *SHARES)},
            after_miss=None if self.after_miss is None else self.after_miss.take(index),
            top=None if self.top is None else self.top[index],
        )

    def with_runs(self, run: IntArray, rejection: FloatArray | None = None) -> DraftView:
        """The same drafter, had so many of its tokens been right, and no other candidate where none is."""
        rank = np.where(run > 0, 0, UNRANKED)
        return replace(self, run=run, rank=rank, rejection=self.rejection if rejection is None else rejection)

    @classmethod
    def of_agreement(
        cls,
        agreed: BoolArray,
        confidence: FloatArray | None = None,
        entropy: FloatArray | None = None,
        rejection: FloatArray | None = None,
    ) -> DraftView:
        """The view of a drafter that always proposes one token, over the positions of one request."""
        unknown = np.full(len(agreed), np.nan)
        return cls(
            run_lengths(agreed),
            np.full(len(agreed), FAR, dtype=np.int64),
            np.where(agreed, 0, UNRANKED),
            unknown if confidence is None else confidence,
            unknown if entropy is None else entropy,
            agreed.astype(np.float64) if rejection is None else rejection,
        )


def run_lengths(agreed: BoolArray) -> IntArray:
    """How many True in a row start at each position, [P], at most `FAR`."""
    here = np.arange(len(agreed), dtype=np.int64)
    misses = np.where(agreed, len(agreed), here)
    following: IntArray = np.minimum.accumulate(misses[::-1])[::-1]
    runs: IntArray = np.minimum(following - here, FAR)
    return runs


def join_views(views: Sequence[DraftView]) -> DraftView:
    """Views of one drafter, one after another: what all of them have."""
    after = [view.after_miss for view in views]
    sure = _least([None if part is None else part.confidence for part in after])
    spread = _least([None if part is None else part.entropy for part in after])
    return DraftView(
        **{name: np.concatenate([getattr(view, name) for view in views]) for name in (*COUNTS, *SHARES)},
        after_miss=None if sure is None or spread is None else AfterMiss(sure, spread),
        top=_least([view.top for view in views]),
    )


def _least(parts: Sequence[FloatArray | None]) -> FloatArray | None:
    """Tables one after another, with as many columns as the least of them; None where one of them is not there."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    least = min(part.shape[1] for part in known)
    return np.concatenate([part[:, :least] for part in known])
