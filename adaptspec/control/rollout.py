"""Which policy meets which traffic: live or a canary; and `when:`, another policy for some of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from adaptspec.control.language.schema import Part, PolicyName, Short
from adaptspec.control.policy import BatchSignals, Decision, Pending, Policy, deepest_search
from adaptspec.control.rows import DrafterNumbers, decide_by_group, learn_by_group, places_of
from adaptspec.control.tasks import OTHER, Names
from adaptspec.errors import ConfigError, PolicyError
from adaptspec.types import BoolArray, FloatArray, IntArray, RoundRecord, nobody


class LiveSpec(Part):
    """Serves requests that name it, and as the default those that name none."""

    mode: Literal["live"]


class CanarySpec(Part):
    """Takes a share of the requests that name no policy, and those that name it."""

    mode: Literal["canary"]
    percent: float = Field(gt=0.0, le=100.0, description="Of the requests that name no policy, by their id.")


Rollout = LiveSpec | CanarySpec
RolloutSpec = Annotated[Rollout, Field(discriminator="mode"), Short("mode")]
LIVE = LiveSpec(mode="live")


@dataclass(frozen=True)
class Reloads:
    """How often policies came anew, and how often they were refused; `last_applied` in seconds since 1970."""

    applied: int = 0
    refused: int = 0
    last_applied: float | None = None


class Shares:
    """Which requests that name no policy go to a canary: u = blake2b(request id) / 2^64 in [0, 1).

    Canaries own neighbouring slices of [0, 1) in their order, the default what is left. So a request id always
    meets the same policy, on every replica and after a restart, and a canary that grows keeps the requests it had.
    """

    def __init__(self, rollouts: Mapping[str, Rollout]) -> None:
        """Raises ConfigError if the canaries together take more than everything."""
        self._ends: list[tuple[float, str]] = []
        end = 0.0
        for name, rollout in rollouts.items():
            if isinstance(rollout, CanarySpec):
                end += rollout.percent / 100.0
                self._ends.append((end, name))
        if end > 1.0 + 1e-9:
            raise ConfigError(
                f"the canaries {', '.join(name for _, name in self._ends)} take {100.0 * end:g} percent of the "
                "requests together; give them at most 100"
            )

    def taker(self, request_id: str) -> str | None:
        """The canary that takes a request; None: the default does."""
        if not self._ends:
            return None
        digest = hashlib.blake2b(request_id.encode(), digest_size=8).digest()
        place = int.from_bytes(digest, "big") / 2.0**64
        return next((name for end, name in self._ends if place < end), None)


class RangeSpec(Part):
    """From one number to another, both included; one of them may be left out."""

    at_least: int | None = Field(default=None, ge=1, description="The least that is meant.")
    at_most: int | None = Field(default=None, ge=1, description="The most that is meant.")

    @model_validator(mode="after")
    def _some(self) -> RangeSpec:
        if self.at_least is None and self.at_most is None:
            raise ValueError("give at-least, at-most or both")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"nothing is at least {self.at_least} and at most {self.at_most}; swap the two")
        return self

    def holds(self, values: IntArray) -> BoolArray:
        meant: BoolArray = values >= (self.at_least or 0)
        return meant if self.at_most is None else meant & (values <= self.at_most)


class WhenSpec(Part):
    """Another policy for some requests or rounds. Of several conditions all must hold."""

    prompt_tokens: RangeSpec | None = Field(default=None, description="The length of the prompt.")
    batch_size: RangeSpec | None = Field(default=None, description="Requests that decode in the round.")
    api_key: str | list[str] | None = Field(
        default=None, description="The name of the request's API key, or a list of names: see --api-key-file."
    )
    use: PolicyName = Field(
        min_length=1,
        description="The policy that decides then: the name of one that ships, or a file. A policy that is sent to a "
        "server names one that ships or is served.",
    )

    @model_validator(mode="after")
    def _some(self) -> WhenSpec:
        if self.api_key is not None and not all(self.keys or [""]):
            raise ValueError("api-key needs the name of a key, or several")
        if self.prompt_tokens is None and self.batch_size is None and self.api_key is None:
            raise ValueError("give a condition: prompt-tokens, batch-size or api-key")
        return self

    @property
    def keys(self) -> list[str]:
        return [self.api_key] if isinstance(self.api_key, str) else self.api_key or []


class Case:
    """One entry of `when:`, and the policy that it names, which may be the one of other entries too."""

    def __init__(self, spec: WhenSpec, policy: Policy, keys: Names) -> None:
        """`keys` gives numbers to names of API keys. Raises PolicyError for a name that can have none."""
        self.spec, self.policy = spec, policy
        where = "spec.when.api-key"
        if OTHER in spec.keys:
            raise PolicyError(f"{where}: {OTHER!r} is what all other keys count as; give the key another name")
        self.keys = tuple(keys.add(name) for name in spec.keys)
        if not all(self.keys):
            raise PolicyError(f"{where}: policies name {len(keys.own)} API keys already, and there is room for no more")

    def holds(self, signals: BatchSignals) -> BoolArray:
        spec, rows = self.spec, len(signals.rows)
        held: BoolArray = np.ones(rows, dtype=np.bool_)
        if spec.prompt_tokens is not None:
            held &= spec.prompt_tokens.holds(signals.context - signals.position)
        if spec.batch_size is not None:
            held &= spec.batch_size.holds(np.full(rows, signals.round_size))
        if self.keys:
            held &= False if signals.keys is None else np.isin(signals.keys, self.keys)
        return held


class ConditionalPolicy(Policy):
    """The policy of the first case that holds, row by row and round by round; else the usual one.

    Each learns from the rounds that it decided, and from no others: what a guard or a bandit makes of a round rests on
    having chosen it.
    """

    def __init__(self, usual: Policy, cases: Sequence[Case], name: str, names: Sequence[str]) -> None:
        """`name` is the policy's own, `names` are those of the policies of the `cases`."""
        self._cases = tuple(cases)
        self._policies = list(dict.fromkeys([usual, *(one.policy for one in cases)]))
        self._turn = [self._policies.index(one.policy) for one in cases]
        by_policy = {id(one.policy): used for one, used in zip(cases, names, strict=True)}
        self._names = [by_policy.get(id(policy), name) for policy in self._policies]
        self.drafters = tuple(dict.fromkeys(n for p in self._policies for n in p.wanted)) or usual.drafters
        self.max_depth = max(policy.max_depth for policy in self._policies)
        self._numbers = [DrafterNumbers(policy.wanted, self.drafters) for policy in self._policies]
        self._pending: Pending[tuple[IntArray, IntArray]] = Pending()  # rows, and who decided for each

    @property
    def search_depth(self) -> int | None:
        return deepest_search(self._policies)

    def start(self, row: int) -> None:
        for policy in self._policies:
            policy.start(row)

    def finish(self, row: int) -> None:
        for policy in self._policies:
            policy.finish(row)

    def decide(self, signals: BatchSignals) -> Decision:
        who: IntArray = np.zeros(len(signals.rows), dtype=np.int64)
        for turn, one in zip(reversed(self._turn), reversed(self._cases), strict=True):
            who[one.holds(signals)] = turn
        self._pending.put(signals.number, (signals.rows, who))
        decision = decide_by_group(
            who, lambda turn, own: self._numbers[turn].decided(self._policies[turn], own), signals
        )
        decision.decided_by = tuple(self._names[turn] for turn in who.tolist())
        return decision

    def learn(self, record: RoundRecord) -> None:
        rows, who = self._pending.take(record.decision) or (nobody(), nobody())
        places = places_of(record.rows, rows)
        if places is None:
            return  # decided by another
        learn_by_group(who[places], self._learn, record)

    def state(self) -> dict[str, FloatArray]:
        """The usual policy's, and by their order those of the others."""
        known = self._policies[0].state()
        for turn, policy in enumerate(self._policies[1:], start=1):
            known.update({f"@when-{turn}/{name}": values for name, values in policy.state().items()})
        return known

    def _learn(self, turn: int, record: RoundRecord) -> None:
        self._policies[turn].learn(self._numbers[turn].record(record))
