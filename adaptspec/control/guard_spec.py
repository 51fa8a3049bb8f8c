"""`guard:` of a policy file: what may overrule the chooser, and when. Knows the guards it builds."""

from __future__ import annotations

from pydantic import Field

from adaptspec.control.batch_schedule import BatchSchedule, Ranges
from adaptspec.control.ceilings import Bounds
from adaptspec.control.cost import CostTable
from adaptspec.control.guards import GuardSettings, NeverSlower, Probe, SwitchGuard
from adaptspec.control.schema import Part


class NeverSlowerSpec(Part):
    """Switch speculation off while it delivers less than plain decoding."""

    margin: float = Field(
        default=0.03, ge=0.0, lt=1.0, description="A window is lost below (1 - margin) x plain decoding."
    )
    window_rounds: int = Field(default=16, ge=1, le=10_000, description="Drafting rounds that are judged together.")
    losing_windows: int = Field(default=2, ge=1, le=1000, description="Lost windows in a row that switch it off.")

    def build(self) -> NeverSlower:
        """The rule."""
        return NeverSlower(self.margin, self.window_rounds, self.losing_windows)


class ProbeSpec(Part):
    """When speculation that is off is tried again."""

    after_tokens: int = Field(default=64, ge=1, le=1_000_000, description="Tokens to emit before the first try.")
    backoff: float = Field(default=2.0, ge=1.0, le=100.0, description="Each try in vain makes the wait so much longer.")

    def build(self) -> Probe:
        """The rule."""
        return Probe(self.after_tokens, self.backoff)


class GuardSpec(Part):
    """What keeps a policy from losing for long."""

    never_slower: NeverSlowerSpec | None = Field(
        default=None, description="Measure what is delivered against plain decoding; off where it is less."
    )
    disable_below_acceptance: float | None = Field(
        default=None, ge=0.0, le=1.0, description="Off where fewer first drafted tokens than this share are accepted."
    )
    probe: ProbeSpec = Field(default=ProbeSpec(), description="How speculation that was switched off comes back.")
    dwell_rounds: int = Field(
        default=0, ge=0, le=10_000, description="Rounds a request keeps a depth before the next change."
    )
    max_batch_size: int | None = Field(default=None, ge=1, description="No drafts in rounds of more requests.")
    depth_by_batch_size: Ranges | None = Field(
        default=None, description="Ceilings as [first batch size, last batch size, deepest draft] ranges."
    )
    min_free_memory: float | None = Field(
        default=None, ge=0.0, le=1.0, description="No drafts while less than this share of the cache is free."
    )

    def bounds(self) -> Bounds:
        """The ceilings of a whole round."""
        schedule = None if self.depth_by_batch_size is None else BatchSchedule(self.depth_by_batch_size)
        return Bounds(self.max_batch_size, schedule, self.min_free_memory)

    def switch(self, cost: CostTable) -> SwitchGuard | None:
        """What switches a policy off and on again; None where nothing may."""
        if self.never_slower is None and self.disable_below_acceptance is None:
            return None
        slower = None if self.never_slower is None else self.never_slower.build()
        return SwitchGuard(GuardSettings(slower, self.disable_below_acceptance, self.probe.build()), cost)
