"""How a policy sharpens or flattens the draft's distribution before tokens are drawn, without loss."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from adaptspec.control.language.schema import Part, Short

_LEAST, _MOST = 0.1, 4.0


class FixedTemperatureSpec(Part):
    """The same for all tokens."""

    mode: Literal["fixed"]
    value: float = Field(
        ge=_LEAST, le=_MOST, description="Below 1 sharpens the draft's distribution, above 1 flattens it."
    )

    @property
    def ends(self) -> tuple[float, float]:
        return self.value, self.value


class DynamicTemperatureSpec(Part):
    """By the entropy of each token's distribution in the draft: low + (high - low) * min(entropy / 2 nats, 1)."""

    mode: Literal["dynamic"]
    range: list[float] = Field(
        min_length=2,
        max_length=2,
        description="[low, high], such as [0.8, 1.2]: of certain tokens, and of those of 2 nats or more.",
        examples=[[0.8, 1.2]],
    )

    @field_validator("range")
    @classmethod
    def _ordered(cls, ends: list[float]) -> list[float]:
        if not _LEAST <= ends[0] <= ends[1] <= _MOST:
            raise ValueError(f"write [low, high] with {_LEAST} <= low <= high <= {_MOST}")
        return ends

    @property
    def ends(self) -> tuple[float, float]:
        low, high = self.range
        return low, high


DraftTemperatureSpec = Annotated[
    FixedTemperatureSpec | DynamicTemperatureSpec, Field(discriminator="mode"), Short("mode")
]
