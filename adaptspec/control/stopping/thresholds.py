"""Stop rules that compare one number with a bound. Knows what the draft says of its own token, and nothing else."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from adaptspec.control.calibration import Calibration
from adaptspec.control.choosers.chooser import Choice
from adaptspec.control.policy import RoundStop
from adaptspec.control.schema import Part
from adaptspec.control.stopping.stop import StopRule
from adaptspec.types import BoolArray, FloatArray, IntArray, RoundRecord


class ConfidenceStop:
    """Go on while the draft gave its token at least `threshold` probability. No confidence known: go on.

    Regimes: good where the right threshold is known for the traffic; a draft's confidence correlates 0.4 to 0.7 with
    acceptance. Source: the confidence heads and thresholds of assisted generation (Kim et al. 2023, BiLD).
    """

    learns = False

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold

    def begin(self, choice: Choice) -> RoundStop | None:  # noqa: ARG002 - the protocol's signature
        """The same rule every round."""
        return self

    def __call__(self, step: int, index: IntArray, confidence: FloatArray, entropy: FloatArray) -> BoolArray:  # noqa: ARG002
        """See `RoundStop`."""
        return ~(confidence < self._threshold)

    def learn(self, record: RoundRecord) -> None:
        """Nothing to learn."""


class EntropyStop:
    """Go on while the draft's distribution has at most `threshold` nats of entropy. None known: go on.

    Regimes: at temperature 0 and near it, much like confidence; at high temperature it does not blame a token for
    having been drawn from the tail.
    """

    learns = False

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold

    def begin(self, choice: Choice) -> RoundStop | None:  # noqa: ARG002 - the protocol's signature
        """The same rule every round."""
        return self

    def __call__(self, step: int, index: IntArray, confidence: FloatArray, entropy: FloatArray) -> BoolArray:  # noqa: ARG002
        """See `RoundStop`."""
        return ~(entropy > self._threshold)

    def learn(self, record: RoundRecord) -> None:
        """Nothing to learn."""


class ConfidenceStopSpec(Part):
    """Stop after a token the draft gave less probability than this."""

    rule: Literal["confidence"]
    threshold: float = Field(ge=0.0, le=1.0, description="Least probability to go on after.")

    def build(self, calibration: Calibration | None) -> StopRule:  # noqa: ARG002 - every spec is built alike
        """The rule."""
        return ConfidenceStop(self.threshold)


class EntropyStopSpec(Part):
    """Stop after a token drawn from a distribution of more entropy than this, in nats."""

    rule: Literal["entropy"]
    threshold: float = Field(ge=0.0, description="Most nats to go on after.")

    def build(self, calibration: Calibration | None) -> StopRule:  # noqa: ARG002 - every spec is built alike
        """The rule."""
        return EntropyStop(self.threshold)
