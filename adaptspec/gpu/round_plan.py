"""What a round on a device is asked for, what comes of it, and which of its parts run in which shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.decision import StopTable, TreeTable
from adaptspec.models.runner import Packed
from adaptspec.models.sampling import SamplingBatch


@dataclass(frozen=True)
class RoundPlan:
    """What B rows are to do: those that decode first, then those whose prompt ends in this round."""

    rows: IntArray  # [B] of the caches
    lengths: IntArray  # [B] tokens so far
    newest: IntArray  # [B, 2] the last two tokens
    unread: IntArray  # [B] how many of these two the draft model has not read: 1 or 2
    depths: IntArray  # [B] tokens that the draft model drafts, at most
    given: IntArray  # [B, D] tokens that others have drafted
    counts: IntArray  # [B] how many
    sampling: SamplingBatch  # of the B rows
    told: IntArray  # [B] how many alternatives are told of each token, -1: not even its own probability
    decoding: int  # rows
    stop: StopTable | None
    draft_temperature: FloatArray | None  # [B, 2] ends of `draft_temperatures`
    nodes: IntArray  # [B] what the draft model's drafts may come to, side nodes and all
    tree: TreeTable | None  # None: they are chains

    @property
    def verified(self) -> Packed:
        """What the target reads of rows that decode, where no draft model drafts on the device."""
        rows = slice(self.decoding)
        sizes, tokens = self.counts[rows] + 1, np.hstack((self.newest[rows, 1:], self.given[rows]))
        fed = tokens[np.arange(tokens.shape[1]) < sizes[:, None]]
        return Packed(self.rows[rows], sizes, fed, sizes)


@dataclass(frozen=True)
class RoundResult:
    """What came of it, for B rows of up to N nodes; `choices` [B, N + 1] are the target's after each."""

    drafted: IntArray
    counts: IntArray  # [B] tokens of the chains
    picks: IntArray  # [B, N] which candidates follow on them: see `combs.packed_tree`
    confidence: FloatArray
    entropy: FloatArray
    choices: IntArray
    first: IntArray  # [B] the first token of a row whose prompt has ended
    bad: IntArray  # [B] whether a row's scores were no numbers
    told: FloatArray | None  # [B, N + 1, 1 + 2 most] log-probabilities: of the choice, of the likeliest; then these
    seconds: tuple[float, float] | None  # of drafting and verifying, by the device's clock where it has one


class RoundShape(NamedTuple):
    """What of a round decides which parts run, in which shapes."""

    rows: int
    deepest: int  # tokens drafted by the draft model, at most
    warm: bool  # by temperatures of the draft's
    wide: bool  # further candidates of each token are kept, and follow on the chains
    width: int  # tokens verified
    moving: bool  # what caches keep lies elsewhere from now on
    together: bool  # the logits of all ranks are needed in one place: else each looks through its own
