"""`verification:` of a policy: which drafted tokens are kept. `adaptspec.verification` has the methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from adaptspec.control.language.schema import Part, Short


class _Method(Part):
    @property
    def parameters(self) -> Mapping[str, float]:
        return self.model_dump(exclude={"method", "lossy"})


class CoupledSpec(_Method):
    """Lossless: a drafted token is kept iff it is the very token the target draws there."""

    method: Literal["coupled"] = "coupled"


class RejectionSpec(_Method):
    """Lossless in distribution: speculative sampling, token by token."""

    method: Literal["rejection"]


class BlockSpec(_Method):
    """Lossless in distribution: speculative sampling of whole drafts, never accepts fewer than token by token."""

    method: Literal["block"]


class _LossyMethod(_Method):
    lossy: Literal[True] = Field(description="Required: the text may differ from that of the target.")

    @model_validator(mode="before")
    @classmethod
    def _lossy_is_accepted(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("lossy") is not True:
            raise ValueError(
                f"method {data.get('method')!r} may change the text: write 'lossy: true' next to it to accept that, "
                "or use coupled, rejection or block"
            )
        return data


class ThresholdSpec(_LossyMethod):
    """Lossy: keep what the target finds likely enough."""

    method: Literal["threshold"]
    high: float = Field(default=0.3, ge=0.0, le=1.0, description="Target probability from which a token is kept.")
    low: float = Field(default=0.05, ge=0.0, le=1.0, description="Target probability below which it is rejected.")
    top: int = Field(default=3, ge=1, le=1000, description="Between the marks: kept if among so many top choices.")

    @model_validator(mode="after")
    def _ordered(self) -> ThresholdSpec:
        if self.low > self.high:
            raise ValueError(f"low is {self.low}, above high ({self.high}); it must not be")
        return self


class TypicalSpec(_LossyMethod):
    """Lossy: keep what is typical of the target's distribution."""

    method: Literal["typical"]
    epsilon: float = Field(default=0.09, gt=0.0, le=1.0, description="Probability that is always enough.")
    delta: float = Field(default=0.3, gt=0.0, le=1.0, description="Share of exp(-entropy) that is enough.")


VerificationSpec = Annotated[
    CoupledSpec | RejectionSpec | BlockSpec | ThresholdSpec | TypicalSpec,
    Field(discriminator="method"),
    Short("method"),
]
