"""SVIP: stop where the draft's entropy bounds acceptance too low. Knows the draft's entropy, and nothing else."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from adaptspec.control.calibration import Calibration
from adaptspec.control.schema import Part
from adaptspec.control.stopping.stop import StopRule
from adaptspec.control.stopping.thresholds import EntropyStop


class SvipStopSpec(Part):
    """Stop after a token where sqrt(scale x entropy) exceeds the threshold."""

    rule: Literal["svip"]
    scale: float = Field(default=0.15, gt=0.0, le=10.0, description="Estimates cross-entropy from the draft's entropy.")
    threshold: float = Field(default=0.3, ge=0.0, le=10.0, description="Root of it above which the draft ends.")

    def build(self, calibration: Calibration | None) -> StopRule:  # noqa: ARG002 - every spec is built alike
        """The rule."""
        return svip_stop(self.scale, self.threshold)


def svip_stop(scale: float = 0.15, threshold: float = 0.3) -> EntropyStop:
    """Stop when sqrt(scale * H) > threshold, H the entropy in nats of the draft's distribution.

    Acceptance is 1 - TV(p, q), and TV(p, q) <= sqrt(KL / 2) (Pinsker); SVIP takes the divergence to be in proportion
    to the draft's own entropy, all that is known before verification. A square root is monotonous, so the rule is
    a bound on the entropy: H > threshold^2 / scale, 0.6 nats by default.
    Regimes: no state, no training; right where the draft knows when it does not know. Source: Zhang et al. 2024,
    "Draft Model Knows When to Stop: A Self-Verification Length Policy for Speculative Decoding".
    """
    return EntropyStop(threshold**2 / scale)
