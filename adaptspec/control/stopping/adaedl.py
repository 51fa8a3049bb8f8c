"""AdaEDL: stop where an entropy-based lower bound on acceptance falls under a threshold that follows acceptance.

Knows the draft's entropy and what share of the drafts was accepted; it decides no depths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field

from adaptspec.control.arrays import total
from adaptspec.control.choosers.chooser import Choice
from adaptspec.control.language.schema import Part
from adaptspec.control.learned import counts
from adaptspec.control.stopping.stop import StopRule
from adaptspec.control.stopping.thresholds import ThresholdStop
from adaptspec.draft_tables import StopTable
from adaptspec.errors import StateError
from adaptspec.types import FloatArray, RoundRecord

_RATE_MEMORY, _THRESHOLD_MEMORY = 0.5, 0.9  # the paper's


class AdaEdlStop(StopRule):
    """Stop when 1 - sqrt(kappa * H) < lambda, H the entropy in nats of the draft's distribution.

    1 - sqrt(kappa * H) bounds acceptance from below (from Pinsker's inequality, with the divergence taken to be in
    proportion to the draft's entropy). Lambda follows acceptance: after each round that drafted,

        r      <- rate_memory * r + (1 - rate_memory) * accepted / drafted
        lambda <- threshold_memory * lambda + (1 - threshold_memory) * (lambda + step * sign(target - r))

    so it rises, and drafts get shorter, while fewer than `target` of the drafted tokens are accepted, and falls while
    more are. Held to [0, 1]. A draft without entropies is never stopped.

    Regimes: no training and no costs needed; it aims at an acceptance, not at time, so the target should fall as
    drafting gets cheaper. Source: Agrawal et al. 2024, "AdaEDL: Early Draft Stopping for Speculative Decoding of
    Large Language Models via an Entropy-based Lower Bound on Token Acceptance Probability".
    """

    learns = True

    def __init__(self, kappa: float = 0.2, threshold: float = 0.6, target: float = 0.9, step: float = 0.01) -> None:
        """`threshold` is where lambda starts; the defaults are the paper's."""
        self._kappa, self._target, self._step = kappa, target, step
        self._rate, self.threshold = target, threshold
        self._stop = self._bound()

    def table(self, choice: Choice) -> StopTable | None:
        """The rule at today's lambda."""
        return self._stop.table(choice)

    def learn(self, record: RoundRecord) -> None:
        """Move lambda by what the round's drafts came to."""
        drafted = total(record.drafted)
        if not drafted:
            return
        self._rate += (1.0 - _RATE_MEMORY) * (total(record.accepted) / drafted - self._rate)
        towards = (self._rate < self._target) - (self._rate > self._target)
        self.threshold += (1.0 - _THRESHOLD_MEMORY) * self._step * towards
        self.threshold = min(1.0, max(0.0, self.threshold))
        self._stop = self._bound()

    def learned(self) -> dict[str, FloatArray]:
        """[1, lambda, r], since lambda takes hundreds of rounds to get anywhere. Of several, the mean counts."""
        return {"threshold": np.array([1.0, self.threshold, self._rate])}

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        many, threshold, rate = counts(learned, "threshold", (3,)).tolist()
        if not max(threshold, rate) <= many:
            raise StateError("'threshold' holds more than a probability; forget this state and learn anew")
        if many:
            self.threshold, self._rate = threshold / many, rate / many
            self._stop = self._bound()

    def _bound(self) -> ThresholdStop:
        # The same inequality solved for the entropy: one comparison per draft step.
        return ThresholdStop(entropy=(1.0 - self.threshold) ** 2 / self._kappa)


class AdaEdlStopSpec(Part):
    """Stop where 1 - sqrt(kappa x entropy) is below a threshold that follows a target acceptance."""

    rule: Literal["adaedl"]
    kappa: float = Field(default=0.2, gt=0.0, le=10.0, description="Weight of the entropy in the bound.")
    threshold: float = Field(default=0.6, ge=0.0, le=1.0, description="Where the threshold starts.")
    target: float = Field(default=0.9, gt=0.0, lt=1.0, description="Share of drafted tokens that should be accepted.")
    step: float = Field(default=0.01, ge=0.0, le=1.0, description="How fast the threshold moves; 0 holds it.")

    def build(self) -> StopRule:
        """The rule."""
        return AdaEdlStop(self.kappa, self.threshold, self.target, self.step)
