"""`algorithm: goodput` in policy files: joint goodput with a draft model, a lookup, or both."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from adaptspec.control.acceptance import AcceptanceSettings
from adaptspec.control.choosers.chooser import Chooser, Parts
from adaptspec.control.choosers.goodput import Goodput, GoodputSettings
from adaptspec.control.language.schema import Part


class PriorSpec(Part):
    """What is believed before anything was seen."""

    acceptance: float = Field(default=0.6, gt=0.0, lt=1.0, description="Of a drafted token, given those before it.")
    weight: float = Field(default=20.0, gt=0.0, description="In observations.")


class GoodputSpec(Part):
    """`choose:` of joint goodput."""

    takes_tiers: ClassVar[bool] = True
    has_outlook: ClassVar[bool] = True
    takes_drafters: ClassVar[bool] = True
    weighs_offers: ClassVar[bool] = True

    algorithm: Literal["goodput"]
    discount: float = Field(default=0.99, gt=0.5, le=1.0, description="Per round of a request: how fast counts fade.")
    prior: PriorSpec = Field(default=PriorSpec(acceptance=0.5, weight=8.0), description="What is believed at first.")
    optimism: float = Field(default=0.1, ge=0.0, le=2.0, description="Exploration of rarely reached positions.")

    def build(self, parts: Parts) -> Chooser:
        """The chooser."""
        acceptance = AcceptanceSettings(self.prior.acceptance, self.prior.weight, row=self.discount)
        settings = GoodputSettings(parts.tiers, parts.drafters, acceptance, stops=parts.stops, optimism=self.optimism)
        return Goodput(parts.cost, parts.max_rows, parts.tasks, settings)
