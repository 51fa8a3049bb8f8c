"""What a stop rule is: after each drafted token, whether a row drafts one more; and the rule that never stops.

To add a rule: one file with its class and its spec, a line in the registry, a test and a YAML.
"""

from __future__ import annotations

from typing import Literal

from adaptspec.control.choosers.chooser import Choice
from adaptspec.control.language.schema import Part
from adaptspec.draft_tables import StopTable
from adaptspec.types import RoundRecord


class StopRule:
    """Writes the stop table of each round, and learns from rounds. This one never stops anything."""

    learns = False  # whether `learn` does anything

    def table(self, choice: Choice) -> StopTable | None:  # noqa: ARG002 - for rules that look at it
        """For the rows of a choice; the same object while nothing changes. None: all of it is to be drafted."""
        return None

    def learn(self, record: RoundRecord) -> None:
        """Take note of a round."""


class NoStopSpec(Part):
    """Draft the whole depth."""

    rule: Literal["none"]

    def build(self) -> StopRule:
        """The rule."""
        return StopRule()
