"""Arms of a bandit: a depth, with an optional drafter and stop rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field, model_validator

from adaptspec.arrays import BoolArray, IntArray
from adaptspec.control.algorithms.algorithm import Choice, Parts
from adaptspec.control.language.schema import Part
from adaptspec.control.stopping import StopRule, StopSpec
from adaptspec.decision import StopTable
from adaptspec.errors import PolicyError


class ArmSpec(Part):
    """A depth to choose, with an optional drafter and stop rule of its own."""

    depth: int = Field(ge=0, le=64, description="Tokens drafted per request and round; 0 is off.")
    stop: StopSpec | None = Field(default=None, description="A stop rule of this arm's own.")
    drafter: str | None = Field(default=None, description="One of the policy's drafters; absent: the first.")

    @model_validator(mode="after")
    def _usable_stop(self) -> ArmSpec:
        if self.stop is not None and self.stop.rule == "marginal-goodput":
            raise ValueError("rule 'marginal-goodput' cannot be an arm's; use it as the policy's stop")
        return self


class Arms:
    """K arms as arrays.

    Arms with the same drafter and the same stop rule object are a family: they differ in depth only, so a round at one
    arm shows what each shallower arm of its family would have earned. Off (depth 0) belongs to no family.
    """

    def __init__(
        self,
        depths: Sequence[int],
        drafters: Sequence[int] | None = None,
        stops: Sequence[StopRule | None] | None = None,
    ) -> None:
        """`drafters` index the policy's drafters; absent: the first for every arm."""
        count = len(depths)
        self.depths: IntArray = np.array(depths, dtype=np.int64)
        self.drafters: IntArray = np.array(drafters or [0] * count, dtype=np.int64)
        self.stops: tuple[StopRule | None, ...] = tuple(stops or [None] * count)
        self.off: int | None = next(iter(np.flatnonzero(self.depths == 0).tolist()), None)
        keys = [(drafter, id(stop)) for drafter, stop in zip(self.drafters.tolist(), self.stops, strict=True)]
        # [K] the first arm of each arm's family; -1 for off.
        self.families: IntArray = np.where(self.depths > 0, [keys.index(key) for key in keys], -1)
        related = (self.families[:, None] == self.families) & (self.families >= 0)
        # [K, K] whether a round at the arm of the first axis shows what that of the second one earns.
        self.reveals: BoolArray = related & (self.depths[:, None] >= self.depths)
        shallower = np.where(related & (self.depths[:, None] > self.depths), self.depths, -1)
        # [K] the next shallower arm of the family; -1 for the shallowest and for off.
        self.below: IntArray = np.where(shallower.max(axis=1) >= 0, shallower.argmax(axis=1), -1)

    def __len__(self) -> int:
        return len(self.depths)

    @property
    def stop_rules(self) -> Sequence[StopRule]:
        """Each stop rule once."""
        return list({id(rule): rule for rule in self.stops if rule is not None}.values())

    def stop_table(self, arms: IntArray, depths: IntArray) -> StopTable | None:
        """Stop rules of rows that play `arms` [B] at `depths` [B]; None where no draft can be stopped."""
        parts: list[tuple[IntArray, StopTable | None]] = []
        for arm, rule in enumerate(self.stops):
            if rule is not None:
                rows = np.flatnonzero((arms == arm) & (depths > 0))
                parts.append((rows, rule.table(Choice(depths[rows], depths[rows]))))
        return StopTable.stacked(parts, len(arms))


def build_arms(specs: Sequence[ArmSpec] | None, parts: Parts) -> Arms:
    """The arms of a policy file; absent: off, and each tier.

    Raises PolicyError if the policy lacks an arm's drafter, if two arms are equal, and if both an arm and the policy
    have a stop rule.
    """
    chosen = [ArmSpec(depth=depth) for depth in (0, *parts.tiers)] if specs is None else list(specs)
    if len({repr(spec) for spec in chosen}) < len(chosen):
        raise PolicyError("spec.choose.arms: two arms are alike; leave one out")
    if parts.stops and any(spec.stop is not None for spec in chosen):
        raise PolicyError("spec.choose.arms: arms bring stops of their own; leave out the policy's stop")
    rules = {repr(spec.stop): spec.stop.build() for spec in chosen if spec.stop is not None}
    drafters = [_drafter(spec.drafter, parts) for spec in chosen]
    return Arms([spec.depth for spec in chosen], drafters, [rules.get(repr(spec.stop)) for spec in chosen])


def _drafter(name: str | None, parts: Parts) -> int:
    if name is not None and name not in parts.drafters:
        raise PolicyError(
            f"spec.choose.arms: an arm wants the drafter {name!r}; add it to the policy's drafters: "
            f"[{', '.join((*parts.drafters, name))}]"
        )
    return 0 if name is None else parts.drafters.index(name)
