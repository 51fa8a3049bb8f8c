"""Stop rules that compare one number with a bound. Knows what the draft says of its own token, and nothing else."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from adaptspec.control.choosers.chooser import Choice
from adaptspec.control.language.schema import Part
from adaptspec.control.stopping.stop import StopRule
from adaptspec.draft_tables import StopTable
from adaptspec.types import FloatArray


class ThresholdStop(StopRule):
    """Go on after a token of at least `confidence` probability, drawn from at most `entropy` nats; whichever is given.

    Confidence: good where the right threshold is known for the traffic; a draft's confidence correlates 0.4 to 0.7
    with acceptance. Source: the thresholds of assisted generation (Kim et al. 2023, BiLD). Entropy: at temperature 0
    and near it much the same; at high temperature it does not blame a token for having been drawn from the tail.
    """

    def __init__(self, *, confidence: float | None = None, entropy: float | None = None) -> None:
        self._bounds = confidence, entropy
        self._table: StopTable | None = None
        self._rows = -1

    def table(self, choice: Choice) -> StopTable | None:
        """See `StopRule.table`."""
        if self._rows != len(choice.depths):
            self._rows = len(choice.depths)
            self._table = StopTable(*(self._filled(bound) for bound in self._bounds))
        return self._table

    def _filled(self, bound: float | None) -> FloatArray | None:
        return None if bound is None else np.full((self._rows, 1), bound)


def svip_stop(scale: float = 0.15, threshold: float = 0.3) -> ThresholdStop:
    """Stop when sqrt(scale * H) > threshold, H the entropy in nats of the draft's distribution.

    Acceptance is 1 - TV(p, q), and TV(p, q) <= sqrt(KL / 2) (Pinsker); SVIP takes the divergence to be in proportion
    to the draft's own entropy, all that is known before verification. A square root is monotonous, so the rule is
    a bound on the entropy: H > threshold^2 / scale, 0.6 nats by default.
    Regimes: no state, no training; right where the draft knows when it does not know. Source: Zhang et al. 2024,
    "Draft Model Knows When to Stop: A Self-Verification Length Policy for Speculative Decoding".
    """
    return ThresholdStop(entropy=threshold**2 / scale)


class ConfidenceStopSpec(Part):
    """Stop after a token the draft gave less probability than this."""

    rule: Literal["confidence"]
    threshold: float = Field(ge=0.0, le=1.0, description="Least probability to go on after.")

    def build(self) -> StopRule:
        """The rule."""
        return ThresholdStop(confidence=self.threshold)


class EntropyStopSpec(Part):
    """Stop after a token drawn from a distribution of more entropy than this, in nats."""

    rule: Literal["entropy"]
    threshold: float = Field(ge=0.0, description="Most nats to go on after.")

    def build(self) -> StopRule:
        """The rule."""
        return ThresholdStop(entropy=self.threshold)


class SvipStopSpec(Part):
    """Stop after a token where sqrt(scale x entropy) exceeds the threshold."""

    rule: Literal["svip"]
    scale: float = Field(default=0.15, gt=0.0, le=10.0, description="Estimates cross-entropy from the draft's entropy.")
    threshold: float = Field(default=0.3, ge=0.0, le=10.0, description="Root of it above which the draft ends.")

    def build(self) -> StopRule:
        """The rule."""
        return svip_stop(self.scale, self.threshold)
