"""How a policy meets traffic: live, as a canary that takes a share of it, or as a shadow that only watches.

Knows names, percentages and request ids; it does not know what a policy does with a request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from adaptspec.control.language.schema import Part
from adaptspec.errors import ConfigError


class LiveSpec(Part):
    """Serves requests that name it, and as the default those that name none."""

    mode: Literal["live"]


class ShadowSpec(Part):
    """Decides without acting, beside the policy that acts; what it would have earned is reported."""

    mode: Literal["shadow"]
    against: str | None = Field(default=None, description="The policy whose requests it watches. Absent: the default.")


class CanarySpec(Part):
    """Takes a share of the requests that name no policy, and those that name it."""

    mode: Literal["canary"]
    percent: float = Field(gt=0.0, le=100.0, description="Of the requests that name no policy, by their id.")


Rollout = LiveSpec | ShadowSpec | CanarySpec
RolloutSpec = Annotated[Rollout, Field(discriminator="mode")]
LIVE = LiveSpec(mode="live")


class Shares:
    """Which requests that name no policy go to a canary: u = blake2b(request id) / 2^64 in [0, 1).

    Canaries own neighbouring slices of [0, 1) in their order, the default what is left. So a request id always
    meets the same policy, on every replica and after a restart, and a canary that grows keeps the requests it had.
    """

    def __init__(self, rollouts: Mapping[str, Rollout]) -> None:
        """
        Raises:
            ConfigError: the canaries together take more than everything.
        """
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
