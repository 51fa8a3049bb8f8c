"""The protocol of a stop rule: after each drafted token, whether a row drafts one more; and the rule that never stops.

To add a rule: one file with its class and its spec, a line in the registry, a test and a YAML.
"""

from __future__ import annotations

from typing import Literal, Protocol

from adaptspec.control.choosers.chooser import Choice
from adaptspec.control.schema import Part
from adaptspec.draft_tables import StopTable
from adaptspec.types import RoundRecord


class StopRule(Protocol):
    """Writes the stop table of each round, and learns from rounds."""

    @property
    def learns(self) -> bool:
        """Whether `learn` does anything."""

    def table(self, choice: Choice) -> StopTable | None:
        """For the rows of a choice; the same object while nothing changes. None: all of it is to be drafted."""

    def learn(self, record: RoundRecord) -> None:
        """Take note of a round."""


class NoStop:
    """Draft the whole depth."""

    learns = False

    def table(self, choice: Choice) -> StopTable | None:  # noqa: ARG002 - the protocol's signature
        """Nothing stops."""
        return None

    def learn(self, record: RoundRecord) -> None:
        """Nothing to learn."""


class NoStopSpec(Part):
    """Draft the whole depth."""

    rule: Literal["none"]

    def build(self) -> StopRule:
        """The rule."""
        return NoStop()
