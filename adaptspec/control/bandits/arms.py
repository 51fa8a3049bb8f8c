"""Arms of a bandit: a depth, a depth with a stop rule or a drafter of its own, or a whole policy.

Knows what an arm is made of and which arms a round at another one says something about; not what any of them earns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field, model_validator

from adaptspec.control.choosers.chooser import Parts
from adaptspec.control.numbering import DrafterNumbers
from adaptspec.control.policy import Policy
from adaptspec.control.schema import Part
from adaptspec.control.stopping.registry import StopSpec
from adaptspec.control.stopping.stop import StopRule
from adaptspec.errors import PolicyError
from adaptspec.types import BoolArray, FloatArray, IntArray


class ArmSpec(Part):
    """One of the things to choose among: a depth (with its own stop rule or drafter), or a shipped policy."""

    depth: int | None = Field(default=None, ge=0, le=64, description="Tokens drafted per request and round; 0 is off.")
    stop: StopSpec | None = Field(default=None, description="A stop rule of this arm's own.")
    drafter: str | None = Field(default=None, description="One of the policy's drafters; absent: the first.")
    policy: str | None = Field(default=None, description="Leave the round to this policy: a shipped one, or a file.")

    @model_validator(mode="after")
    def _one_kind(self) -> ArmSpec:
        if (self.depth is None) == (self.policy is None):
            raise ValueError("an arm has either a depth or a policy, such as {depth: 3} or {policy: goodput}")
        if self.policy is not None and (self.stop is not None or self.drafter is not None):
            raise ValueError("an arm that is a policy brings its own stop and drafter; leave these out")
        if self.stop is not None and self.stop.rule == "marginal-goodput":
            raise ValueError("rule 'marginal-goodput' cannot be an arm's; use it as the policy's stop")
        return self


@dataclass(frozen=True)
class NestedPolicy:
    """A policy that is an arm, and how its drafters are numbered."""

    name: str
    policy: Policy
    numbers: DrafterNumbers


class Arms:
    """K arms as arrays.

    Arms of one family (same drafter, same stop rule) differ in depth only, so a round at one of them tells exactly what
    the shallower ones would have earned. Off belongs to no family; a policy is a family of its own.
    """

    def __init__(
        self,
        depths: Sequence[int],
        drafters: Sequence[int] | None = None,
        stops: Sequence[StopRule | None] | None = None,
        policies: Sequence[NestedPolicy | None] | None = None,
    ) -> None:
        """Arms of one family share their stop rule object. Depths of policies are the deepest they ask for."""
        count = len(depths)
        self.depths: IntArray = np.array(depths, dtype=np.int64)
        self.drafters: IntArray = np.array(drafters or [0] * count, dtype=np.int64)
        self.stops: tuple[StopRule | None, ...] = tuple(stops or [None] * count)
        self.policies: tuple[NestedPolicy | None, ...] = tuple(policies or [None] * count)
        self.opaque: BoolArray = np.array([policy is not None for policy in self.policies])
        self.families = self._families()
        plain = (self.depths == 0) & ~self.opaque
        self.off = int(np.flatnonzero(plain)[0]) if plain.any() else None
        alike = (self.families[:, None] == self.families) & (self.families >= 0)
        # [played, told of]
        self.reveals: BoolArray = alike & (self.depths[:, None] >= self.depths)
        # The next shallower arm of the family, -1 at its bottom.
        self.below: IntArray = np.full(count, -1, dtype=np.int64)
        for arm in range(count):
            lower = np.flatnonzero(alike[arm] & (self.depths < self.depths[arm]))
            if len(lower):
                self.below[arm] = lower[np.argmax(self.depths[lower])]
        # Arms that draft to a depth of their own, shallowest first.
        self.ladder: list[int] = [a for a in np.argsort(self.depths, kind="stable").tolist() if self._drafts(a)]
        # [K, 101] tokens per round at an acceptance of 0 to 100 percent, alike for every token.
        powers = np.linspace(0.0, 1.0, 101) ** np.arange(1 + max(depths))[:, None]
        self.tokens: FloatArray = powers.cumsum(axis=0)[self.depths]

    def __len__(self) -> int:
        return len(self.depths)

    def _drafts(self, arm: int) -> bool:
        return bool(self.depths[arm] > 0 and not self.opaque[arm])

    def _families(self) -> IntArray:
        keys: list[tuple[object, ...]] = []
        for arm, depth in enumerate(self.depths.tolist()):
            policy, stop = self.policies[arm], self.stops[arm]
            keys.append((arm,) if policy else () if not depth else (int(self.drafters[arm]), id(stop)))
        known = list(dict.fromkeys(key for key in keys if key))
        return np.array([known.index(key) if key else -1 for key in keys], dtype=np.int64)


def build_arms(specs: Sequence[ArmSpec] | None, parts: Parts) -> Arms:
    """The arms of a policy file; absent: off and one per tier.

    Raises:
        PolicyError: an arm names a drafter that the policy does not, there are two alike, or stops clash.
    """
    chosen = [ArmSpec(depth=depth) for depth in (0, *parts.tiers)] if specs is None else list(specs)
    if len({repr(spec) for spec in chosen}) < len(chosen):
        raise PolicyError("spec.choose.arms: two arms are alike; leave one out")
    if parts.stops and any(spec.stop is not None or spec.policy is not None for spec in chosen):
        raise PolicyError("spec.choose.arms: arms bring stops of their own; leave out the policy's stop")
    rules: dict[str, StopRule] = {}
    stops: list[StopRule | None] = []
    for spec in chosen:
        if spec.stop is not None and repr(spec.stop) not in rules:
            rules[repr(spec.stop)] = spec.stop.build()
        stops.append(None if spec.stop is None else rules[repr(spec.stop)])
    policies = [None if spec.policy is None else _nested(spec.policy, parts) for spec in chosen]
    depths = [
        spec.depth or 0 if nested is None else nested.policy.max_depth
        for spec, nested in zip(chosen, policies, strict=True)
    ]
    return Arms(depths, [_drafter(spec.drafter, parts) for spec in chosen], stops, policies)


def _drafter(name: str | None, parts: Parts, whose: str = "an arm") -> int:
    if name is None:
        return 0
    if name not in parts.drafters:
        raise PolicyError(
            f"spec.choose.arms: {whose} wants the drafter {name!r}; add it to the policy's drafters: "
            f"[{', '.join((*parts.drafters, name))}]"
        )
    return parts.drafters.index(name)


def _nested(name: str, parts: Parts) -> NestedPolicy:
    if parts.policy is None:
        raise PolicyError(f"spec.choose.arms: policy {name!r} cannot be an arm here: arms of it would nest too deep")
    policy = parts.policy(name)
    wanted = policy.drafters if policy.max_depth else ()
    for drafter in wanted:
        _drafter(drafter, parts, f"the arm {{policy: {name}}}")
    return NestedPolicy(name, policy, DrafterNumbers(wanted, parts.drafters))
