"""`algorithm: goodput` in policy files: joint goodput with a draft model, a lookup, or both."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from adaptspec.control.choosers.chooser import Chooser, Parts
from adaptspec.control.choosers.goodput import Goodput, GoodputSettings, PriorSpec
from adaptspec.control.choosers.lookup import LOOKUP, LookupGoodput, LookupSettings
from adaptspec.control.schema import Part
from adaptspec.control.signals import SignalSettings


class GoodputSpec(Part):
    """`choose:` of joint goodput."""

    takes_tiers: ClassVar[bool] = True
    takes_drafters: ClassVar[bool] = True
    weighs_offers: ClassVar[bool] = True

    algorithm: Literal["goodput"]
    discount: float = Field(default=0.99, gt=0.5, le=1.0, description="Per round of a request: how fast counts fade.")
    prior: PriorSpec = Field(default=PriorSpec(acceptance=0.5, weight=8.0), description="What is believed at first.")
    optimism: float = Field(default=0.1, ge=0.0, le=2.0, description="Exploration of rarely reached positions.")

    def build(self, parts: Parts) -> Chooser:
        """The chooser."""
        if LOOKUP not in parts.drafters:
            return self._planner(parts.drafters[0], parts)
        settings = LookupSettings.among(parts.drafters, parts.tiers)
        planner = None if settings.model is None else self._planner(settings.drafter, parts)
        return LookupGoodput(parts.cost, parts.max_rows, parts.tasks, settings, planner)

    def _planner(self, drafter: str, parts: Parts) -> Goodput:
        signals = SignalSettings(self.prior.acceptance, self.prior.weight, row=self.discount)
        settings = GoodputSettings(parts.tiers, drafter, signals, stops=parts.stops, optimism=self.optimism)
        return Goodput(parts.cost, parts.max_rows, parts.tasks, settings)
