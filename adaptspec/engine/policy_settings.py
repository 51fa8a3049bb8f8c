"""The settings of a policy that the engine applies: the verification method, and the scope of the counts drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adaptspec.control.language.spec import History, PolicySpec
from adaptspec.control.policy import Policy
from adaptspec.errors import ConfigError
from adaptspec.verification import make_method
from adaptspec.verification.method import Method


@dataclass(frozen=True)
class PolicySettings:
    """How the requests of a policy are verified, and which earlier requests they may be drafted from."""

    method: Method
    history: History = "key"

    @classmethod
    def of(cls, spec: PolicySpec) -> PolicySettings:
        """The settings of a policy file."""
        return cls(make_method(spec.verification.method, spec.verification.parameters), spec.history)

    def scope(self, key: str | None) -> str | None:
        """Requests of one scope are drafted from each other's text; None: from the request's text alone. `key` is the
        name of its API key.
        """
        if self.history == "server":
            return "server"
        return None if self.history == "none" or key is None else f"key {key}"

    def check(self, name: str, policy: Policy, anticipating: Sequence[str]) -> None:
        """Refuse a method that would be biased by what one of the policy's drafters may leave out.

        Raises:
            ConfigError: it weighs tokens by what they were drawn from, and the policy drafts with one of the
                `anticipating` drafters.
        """
        dropping = [drafter for drafter in anticipating if policy.max_depth and drafter in policy.drafters]
        if dropping and self.method.needs_distribution:
            raise ConfigError(
                f"policy {name}: spec.verification: {self.method.name} weighs each drafted token by what it was drawn "
                f"from, but {dropping[0]} may drop a token by its value, which would change the distribution of texts: "
                "use coupled, or another drafter"
            )
