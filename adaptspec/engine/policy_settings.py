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
    """The verification method of a policy, and the earlier requests that it may draft from."""

    method: Method
    history: History = "key"

    @classmethod
    def of(cls, spec: PolicySpec) -> PolicySettings:
        """The settings of a policy file."""
        return cls(make_method(spec.verification.method, spec.verification.parameters), spec.history)

    def scope(self, key: str | None) -> str | None:
        """The scope of requests that draft from each other's text; None: only from the request's text. `key` is the
        name of its API key.
        """
        if self.history == "server":
            return "server"
        return None if self.history == "none" or key is None else f"key {key}"

    def check(self, name: str, policy: Policy, anticipating: Sequence[str]) -> None:
        """Check that the method is unbiased with the policy's drafters.

        Raises:
            ConfigError: the method uses the draft's distribution, and the policy drafts with one of the `anticipating`
                drafters.
        """
        dropping = [drafter for drafter in anticipating if policy.max_depth and drafter in policy.drafters]
        if dropping and self.method.needs_distribution:
            raise ConfigError(
                f"policy {name}: spec.verification: {self.method.name} needs the distribution of drafted tokens, but "
                f"{dropping[0]} may drop a token by its value, which would change the distribution of texts: use "
                "coupled, or another drafter"
            )
