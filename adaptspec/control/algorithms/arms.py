"""Arms of a bandit: a depth, or a depth with a stop rule or a drafter of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field, model_validator

from adaptspec.control.algorithms.algorithm import Choice, Parts
from adaptspec.control.language.schema import Part
from adaptspec.control.policy import BatchSignals, Decision
from adaptspec.control.rows import decide_by_group, some
from adaptspec.control.stopping import StopRule, StopSpec
from adaptspec.errors import PolicyError
from adaptspec.types import BoolArray, FloatArray, IntArray, RoundRecord


class ArmSpec(Part):
    """One of the things to choose among: a depth, with its own stop rule or drafter."""

    depth: int = Field(ge=0, le=64, description="Tokens drafted per request and round; 0 is off.")
    stop: StopSpec | None = Field(default=None, description="A stop rule of this arm's own.")
    drafter: str | None = Field(default=None, description="One of the policy's drafters; absent: the first.")

    @model_validator(mode="after")
    def _usable_stop(self) -> ArmSpec:
        if self.stop is not None and self.stop.rule == "marginal-goodput":
            raise ValueError("rule 'marginal-goodput' cannot be an arm's; use it as the policy's stop")
        return self


class Arms:
    """K arms as arrays; `play` puts together the rounds in which rows play arms of different kinds.

    Arms of one family (same drafter, same stop rule object) differ in depth only, so a round at one of them tells
    exactly what the shallower ones would have earned. Off belongs to no family.
    """

    def __init__(
        self,
        depths: Sequence[int],
        drafters: Sequence[int] | None = None,
        stops: Sequence[StopRule | None] | None = None,
    ) -> None:
        count = len(depths)
        self.depths: IntArray = np.array(depths, dtype=np.int64)
        self.drafters: IntArray = np.array(drafters or [0] * count, dtype=np.int64)
        self.stops: tuple[StopRule | None, ...] = tuple(stops or [None] * count)
        off = np.flatnonzero(self.depths == 0)
        self.off = int(off[0]) if len(off) else None
        keys = [(drafter, id(stop)) for drafter, stop in zip(self.drafters.tolist(), self.stops, strict=True)]
        drafts = self.depths > 0
        self.families: IntArray = np.array([keys.index(key) if drafts[arm] else -1 for arm, key in enumerate(keys)])
        alike = (self.families[:, None] == self.families) & (self.families >= 0)
        # [played, told of]
        self.reveals: BoolArray = alike & (self.depths[:, None] >= self.depths)
        # The next shallower arm of the family, -1 at its bottom.
        shallower = np.where(alike & (self.depths[:, None] > self.depths), self.depths, -1)
        self.below: IntArray = np.where(shallower.max(axis=1) >= 0, shallower.argmax(axis=1), -1)
        # Arms that draft to a depth of their own, shallowest first.
        order = np.argsort(self.depths, kind="stable").tolist()
        self.ladder: list[int] = [arm for arm in order if drafts[arm]]
        # [K, 101] tokens per round at an acceptance of 0 to 100 percent, alike for every token.
        powers = np.linspace(0.0, 1.0, 101) ** np.arange(1 + max(depths))[:, None]
        self.tokens: FloatArray = powers.cumsum(axis=0)[self.depths]
        # Whether a round of arms is more than their depths.
        self.split = any(stop is not None for stop in self.stops)

    def __len__(self) -> int:
        return len(self.depths)

    def play(self, choice: Choice, arms: IntArray, signals: BatchSignals) -> Choice:
        """The choice of arms [B] at their depths, cut by their stop rules."""

        def played(arm: int, mine: BatchSignals) -> Decision:
            rule = self.stops[arm]
            depths = np.minimum(self.depths[arm], mine.limits)
            stop = None if rule is None else rule.table(Choice(depths, depths))
            return Decision(depths, np.zeros_like(depths), np.full_like(depths, self.drafters[arm]), stop)

        made = decide_by_group(arms, played, signals)
        stop = made.stop if some(made.depths) else None
        return Choice(made.depths, choice.reasons, drafter=made.drafter, stop=stop)

    def learn(self, record: RoundRecord) -> None:
        """Teach the stop rules, which learn from all rounds."""
        for rule in {id(rule): rule for rule in self.stops if rule is not None}.values():
            rule.learn(record)


def build_arms(specs: Sequence[ArmSpec] | None, parts: Parts) -> Arms:
    """The arms of a policy file; absent: off and one per tier.

    Raises PolicyError if an arm names a drafter that the policy does not, there are two alike, or stops clash.
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
