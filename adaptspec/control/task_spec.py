"""`tasks:` of a policy file: what is different for requests of one task. Knows what it builds, not who is asked."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from adaptspec.control.ceilings import DEEPEST, Bounds
from adaptspec.control.schema import Part
from adaptspec.control.stopping.registry import StopSpec
from adaptspec.control.verification_spec import VerificationSpec
from adaptspec.control.yaml_source import shown

_OF_WHOLE_ROUNDS = ("never-slower", "disable-below-acceptance", "probe")


def _depth(tier: Any) -> Any:
    """A tier as a depth. YAML 1.1 reads `off` as false, so what other programs send may be either."""
    if tier == "off" or tier is False:
        return 0
    if not isinstance(tier, int) or isinstance(tier, bool):
        raise ValueError(f"a tier is a number of tokens, or off for none, not {shown(tier)}")
    return tier


def _ascending(tiers: list[int]) -> list[int]:
    if tiers != sorted(set(tiers)):
        raise ValueError("tiers must ascend, each once, such as [off, 1, 3, 7]")
    return tiers


_A_TIER = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": DEEPEST}, {"enum": ["off", False]}]}
Tiers = Annotated[
    list[Annotated[int, Field(ge=0, le=DEEPEST), BeforeValidator(_depth), WithJsonSchema(_A_TIER)]],
    Field(min_length=1, max_length=DEEPEST + 1),
    AfterValidator(_ascending),
]


class TaskGuardSpec(Bounds):
    """What may overrule the algorithm for one task; what is absent is as the policy's guard has it."""

    dwell_rounds: int | None = Field(
        default=None, ge=0, le=10_000, description="Rounds a request keeps a depth before the next change."
    )

    @model_validator(mode="before")
    @classmethod
    def _of_one_task(cls, data: Any) -> Any:
        for key in _OF_WHOLE_ROUNDS:
            if isinstance(data, dict) and key in data:
                raise ValueError(
                    f"{key} judges whole rounds, which tasks share: write it under spec.guard; "
                    "for one task there are off, max-depth, tiers and stop"
                )
        return data


class TaskSpec(Part):
    """What is different for one task."""

    stop: StopSpec | None = Field(default=None, description="A stop rule of its own; absent: the policy's.")
    tiers: Tiers | None = Field(
        default=None, description="The depths it is kept to: what lies between two is lowered. Absent: the policy's."
    )
    max_depth: int | None = Field(default=None, ge=0, le=DEEPEST, description="Its deepest draft.")
    off: bool = Field(default=False, description="Never draft for it.")
    guard: TaskGuardSpec = Field(default=TaskGuardSpec(), description="Ceilings and dwelling of its own.")
    verification: VerificationSpec | None = Field(
        default=None, description="Which of its drafted tokens are kept; absent: as the policy says."
    )

    @model_validator(mode="after")
    def _one_bound(self) -> TaskSpec:
        given = [name for name, is_there in self._bounds_given() if is_there]
        if len(given) > 1:
            raise ValueError(f"give one of {', '.join(given)}, not {len(given)}")
        return self

    @property
    def deepest(self) -> int | None:
        """Its ceiling; None if it has none."""
        if self.tiers is not None:
            return self.tiers[-1]
        return 0 if self.off else self.max_depth

    def _bounds_given(self) -> list[tuple[str, bool]]:
        return [("tiers", self.tiers is not None), ("max-depth", self.max_depth is not None), ("off", self.off)]
