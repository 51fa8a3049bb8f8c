"""What drafting earns and costs in a round: the terms that a plan is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from adaptspec.arrays import BoolArray, FloatArray
from adaptspec.control.acceptance import ModelAcceptance
from adaptspec.control.cost_model import CostModel, DraftPrices
from adaptspec.control.policy import BatchSignals

# Rounds that catching up is spread over. With fewer, a drafter that lags stays off where it pays; with more, it goes on
# and off.
CATCH_UP_ROUNDS = 32.0


@dataclass(frozen=True)
class ModelTerms:
    """What a drafter that runs a model earns and costs, by row and by depth 0 ... D. Times are seconds."""

    drafter_id: int
    acceptance: FloatArray  # [B, D]
    gains: FloatArray  # [B, D + 1] tokens expected to be kept
    nodes: FloatArray  # [D + 1] tokens expected to be submitted, side nodes included
    prices: DraftPrices
    catch_up: FloatArray  # [B] of reading what the drafter has missed, a share of it for each round
    calibration: FloatArray  # [B, bins] P(a token is kept) by the model's confidence in it
    side_chances: FloatArray  # [ranks] P(a side node is kept) over what it states, from rank 1 on
    side_gain: float = 0.0  # tokens that side nodes bring where a token of the chain is not kept
    side_nodes: float = 0.0  # submitted for each token of the chain
    whole: bool = False  # the executor runs all planned passes, even for rows that a stop rule has stopped

    @property
    def step_gains(self) -> FloatArray:
        """[B, D] tokens that a pass is expected to bring where all before were kept: the chain's or a side node's."""
        return np.asarray(self.acceptance + (1.0 - self.acceptance) * self.side_gain)

    @classmethod
    def of(
        cls,
        drafter_id: int,
        name: str,
        known: ModelAcceptance,
        cost: CostModel,
        signals: BatchSignals,
    ) -> ModelTerms:
        """For these rows. Catching up is spread over `CATCH_UP_ROUNDS`.

        A draft is expected to reach its depth: how far stop rules let drafts go could be learned, and would earn no
        more (0.9992 on the SmolLM2 tape).
        """
        gain, side = (0.0, 0.0) if known.sides is None else (known.sides.gain, known.sides.nodes)
        acceptance = known.by_position.acceptance(signals.rows, signals.tasks)
        prices = cost.draft_prices(name, signals.round_size)
        alive = acceptance.cumprod(axis=1)
        gains = alive - np.diff(alive, axis=1, prepend=1.0) * gain
        return cls(
            drafter_id,
            acceptance,
            np.concatenate((np.zeros((len(gains), 1)), np.cumsum(gains, axis=1)), axis=1),
            np.arange(gains.shape[1] + 1) * (1.0 + side),
            prices,
            prices.catch_up_token * signals.cache_gap[drafter_id] / CATCH_UP_ROUNDS,
            known.calibration.acceptance(signals.rows, signals.tasks),
            np.ones(1) if known.sides is None else known.sides.chances,
            gain,
            side,
            cost.runs_whole_drafts(name),
        )


@dataclass(frozen=True)
class LookupTerms:
    """What a model-free drafter has found for the rows of a round, which is known before the round."""

    drafter_id: int
    gains: FloatArray  # [B, D + 1] tokens expected to be kept
    fits: BoolArray  # [B, D + 1] depths that were found and are allowed, and 0
    seconds: float  # of each row that drafts


@dataclass(frozen=True)
class RoundTerms:
    """What the rows of a round earn and cost. Times are seconds, tokens are counted beyond one per row."""

    size: int  # rows that decode, under whatever policy
    plain: float  # a round without drafts
    overhead: float  # of a round with drafts, in addition to a plain one's
    verify: FloatArray  # [B * N + 1] of verifying n more tokens; N: the most of one row
    fits: BoolArray  # [B, D + 1] depths that rows may draft
    models: tuple[ModelTerms, ...]
    lookups: tuple[LookupTerms, ...] = ()
    weight: FloatArray | None = None  # [B] what a token of each row counts; None: all the same

    @classmethod
    def of(cls, cost: CostModel, signals: BatchSignals, fits: BoolArray, models: tuple[ModelTerms, ...]) -> RoundTerms:
        """For rows that may draft to these depths."""
        size, context = signals.round_size, float(signals.context.sum())
        # Where drafts branch, lookups may be added to all nodes of a model.
        deepest = fits.shape[1] - 1
        most = max([deepest, *(math.ceil(model.nodes[-1]) + deepest for model in models if model.side_nodes)])
        tokens = size + np.arange(1.0 + len(fits) * most)
        verify = cost.verify_curve(size, tokens, context)
        plain_overhead = cost.overhead_seconds(size, drafting=False)
        return cls(
            size=size,
            plain=float(verify[0]) + plain_overhead,
            overhead=cost.overhead_seconds(size, drafting=True) - plain_overhead,
            verify=verify - verify[0],
            fits=fits,
            models=models,
        )

    def verify_seconds(self, tokens: FloatArray | float) -> FloatArray:
        """Seconds of verifying `tokens` more tokens, all rows together; any shape, in the same shape."""
        return np.asarray(np.interp(tokens, np.arange(len(self.verify)), self.verify))

    def row_curve(self, others: float) -> FloatArray:
        """Seconds that 0 ... N tokens of one row add where the other rows verify `others` more tokens."""
        last = len(self.verify) - 1
        most = last // len(self.fits)
        low = min(int(others), last - most)
        return np.asarray(self.verify[low : low + most + 1] - self.verify[low])
