"""What `choose:` of every bandit has in common, and how one is put together from it."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from adaptspec.control.bandits.arms import Arms, ArmSpec, build_arms
from adaptspec.control.bandits.bandit import Bandit, BanditSettings
from adaptspec.control.bandits.contexts import Scope
from adaptspec.control.bandits.learner import Learner
from adaptspec.control.bandits.ledger import Memory
from adaptspec.control.choosers.chooser import Chooser, Parts
from adaptspec.control.schema import Part


class BanditSpec(Part):
    """Fields of every bandit. An algorithm adds its own and `learner`."""

    # What a policy may say beside `choose:`, and the tiers that are arms if it says nothing.
    takes_tiers: ClassVar[bool] = True
    takes_drafters: ClassVar[bool] = True
    default_tiers: ClassVar[tuple[int, ...]] = (0, 1, 3, 7)

    arms: list[ArmSpec] | None = Field(
        default=None, min_length=1, max_length=32, description="What to choose among; absent: one arm per tier."
    )
    scope: Scope = Field(default="task", description="Whose record an arm is chosen by.")
    dwell_rounds: int = Field(default=8, ge=1, le=1000, description="Rounds an arm is kept before the next choice.")
    horizon_rounds: float = Field(
        default=32.0,
        ge=1.0,
        le=10_000.0,
        description="Rounds that the cost of catching up is spread over.",
    )
    prior_rounds: float = Field(
        default=16.0, ge=0.0, le=10_000.0, description="Rounds that a request believes its task, a task all traffic."
    )
    discount: float = Field(default=0.993, gt=0.5, le=1.0, description="Per round: how fast what was seen fades.")

    def build(self, parts: Parts) -> Chooser:
        """The chooser.

        Raises:
            PolicyError: the arms do not fit each other or the policy.
        """
        arms = build_arms(self.arms, parts)
        settings = BanditSettings(self.scope, self.dwell_rounds, self.memory, self.prior_rounds, self.horizon_rounds)
        return Bandit(arms, self.learner(arms, parts), parts, settings)

    @property
    def memory(self) -> Memory:
        """How long rounds are remembered."""
        return Memory(self.discount)

    def learner(self, arms: Arms, parts: Parts) -> Learner:
        """The algorithm itself."""
        raise NotImplementedError(f"{type(self).__name__} says which algorithm it is")
