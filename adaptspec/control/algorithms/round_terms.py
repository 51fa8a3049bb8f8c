"""What drafting brings and costs the rows of a round: what a plan is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from adaptspec.control.acceptance import ModelAcceptance
from adaptspec.control.cost import CostTable
from adaptspec.control.policy import BatchSignals
from adaptspec.types import BoolArray, FloatArray


@dataclass(frozen=True)
class ModelTerms:
    """What a drafter that runs a model brings and costs these rows, by depth 0 ... D."""

    which: int
    acceptance: FloatArray  # [B, D]
    gains: FloatArray  # [B, D + 1] tokens expected to be kept
    sizes: FloatArray  # [D + 1] tokens expected to be drafted, of the main chain
    nodes: FloatArray  # [D + 1] tokens expected to be submitted
    drafted: FloatArray  # [D] how likely the stop rule lets a draft come to each token
    per_step: float
    per_row: float
    start: float
    entry: FloatArray  # [B] for a row to draft at all: catching up
    calibration: FloatArray  # [B, bins] P(a token is kept) by the model's confidence in it
    chances: FloatArray  # [ranks] of side nodes: P(kept) in what they state, from rank 1 on
    side_gain: float = 0.0  # tokens that side nodes bring where a token of the chain is not kept
    side_nodes: float = 0.0  # that are submitted beside each token of the chain
    together: bool = False  # all planned steps run, also those of rows that a stop rule has stopped

    @property
    def steps(self) -> FloatArray:
        """[D + 1] draft steps that a round of this depth is expected to run."""
        return np.arange(len(self.sizes), dtype=np.float64) if self.together else self.sizes

    @property
    def brings(self) -> FloatArray:
        """[B, D] tokens that a step is expected to bring where all before were kept: the chain's, or a side node's."""
        brings: FloatArray = self.acceptance + (1.0 - self.acceptance) * self.side_gain
        return brings

    @classmethod
    def of(
        cls,
        which: int,
        known: ModelAcceptance,
        cost: CostTable,
        name: str,
        signals: BatchSignals,
        *,
        optimism: float,
        horizon: float,
    ) -> ModelTerms:
        """What is known of drafter `which`, called `name`, for these rows.

        `optimism` / sqrt(1 + times seen) is added to acceptance, catching up is spread over `horizon` rounds.
        """
        gain, side = (0.0, 0.0) if known.sides is None else (known.sides.gain, known.sides.nodes)
        sure = known.by_position.acceptance(signals.rows, signals.tasks)
        acceptance = np.minimum(sure + optimism / np.sqrt(1.0 + known.by_position.seen()), 1.0)
        kept, drafted = known.continuation.rates()
        per_step, per_row = cost.step_line(name, signals.round_size)
        alive = acceptance.cumprod(axis=1)
        # What the chain misses, side nodes may still have.
        gains = (alive - np.diff(alive, axis=1, prepend=1.0) * gain) * kept
        sizes = np.concatenate(([0.0], np.cumsum(drafted)))
        return cls(
            which,
            acceptance,
            np.concatenate((np.zeros((len(gains), 1)), np.cumsum(gains, axis=1)), axis=1),
            sizes,
            sizes * (1.0 + side),
            drafted,
            per_step,
            per_row,
            cost.start_seconds(name, signals.round_size),
            cost.catch_up_seconds(name, 1.0) * signals.cache_gap[which] / horizon,
            known.calibration.acceptance(signals.rows, signals.tasks),
            np.ones(1) if known.sides is None else known.sides.chances,
            gain,
            side,
            cost.drafts_together(name),
        )


@dataclass(frozen=True)
class RoundTerms:
    """What drafting brings and costs the rows of a round. Times are seconds."""

    size: int  # rows that decode, under whatever policy
    plain: float
    beside: float  # what a round with drafts takes beyond its passes, more than a plain one
    verify: FloatArray  # [B * N + 1] what verifying n more tokens adds, up to N of each row
    fits: BoolArray  # [B, D + 1]
    models: tuple[ModelTerms, ...]

    @classmethod
    def of(cls, cost: CostTable, signals: BatchSignals, fits: BoolArray, models: tuple[ModelTerms, ...]) -> RoundTerms:
        """For rows that may draft to these depths."""
        size, context = signals.round_size, float(signals.context.sum())
        deepest = fits.shape[1] - 1
        # Where drafts branch, what a model-free drafter knows may stand beside all of a model's nodes.
        most = max([deepest, *(math.ceil(one.nodes[-1]) + deepest for one in models if one.side_nodes)])
        tokens = size + np.arange(1.0 + len(signals.rows) * most)
        verify = cost.verify_curve(size, tokens, context, optimistic=True)
        return cls(
            size=size,
            plain=cost.plain_seconds(size, context),
            beside=cost.overhead_seconds(size, drafting=True) - cost.overhead_seconds(size, drafting=False),
            verify=verify - verify[0],
            fits=fits,
            models=models,
        )
