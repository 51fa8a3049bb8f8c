"""The protocol of a stop rule: after each drafted token, whether a row drafts one more; and the rule that never stops.

To add a rule: one file with its class and its spec, a line in the registry, a test and a YAML. Every rule here is
exact under every lossless verification, because the token it looked at is still submitted.
"""

from __future__ import annotations

from typing import Literal, Protocol

from adaptspec.control.calibration import Calibration
from adaptspec.control.choosers.chooser import Choice
from adaptspec.control.policy import RoundStop
from adaptspec.control.schema import Part
from adaptspec.types import RoundRecord


class StopRule(Protocol):
    """Makes the stop of each round, and learns from rounds."""

    @property
    def learns(self) -> bool:
        """Whether `learn` does anything."""

    def begin(self, choice: Choice) -> RoundStop | None:
        """The stop of a round with this choice, or of several where it stands; None: all of it is to be drafted."""

    def learn(self, record: RoundRecord) -> None:
        """Take note of a round."""


class NoStop:
    """Draft the whole depth."""

    learns = False

    def begin(self, choice: Choice) -> RoundStop | None:  # noqa: ARG002 - the protocol's signature
        """Nothing stops."""
        return None

    def learn(self, record: RoundRecord) -> None:
        """Nothing to learn."""


class NoStopSpec(Part):
    """Draft the whole depth."""

    rule: Literal["none"]

    def build(self, calibration: Calibration | None) -> StopRule:  # noqa: ARG002 - every spec is built alike
        """The rule."""
        return NoStop()
