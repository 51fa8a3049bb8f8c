"""Which policy a request is decided by: settled once, when it arrives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.rollout import Rollout, Shares, WhenSpec
from adaptspec.errors import ConfigError
from adaptspec.request import Request


@dataclass(frozen=True)
class Route:
    """One entry of a policy's `when:`, and the name of the policy that it uses."""

    when: WhenSpec
    policy: str


def routes_of(spec: PolicySpec) -> tuple[Route, ...]:
    """The `when:` of a policy, in its order."""
    return tuple(Route(when, spec.used[when.use].name) for when in spec.spec.when)


def with_used(specs: Sequence[PolicySpec]) -> list[PolicySpec]:
    """The policies, and behind them those that they use and that are not among them, by name. Raises ConfigError: two
    policies have one name.
    """
    found = {spec.name: spec for spec in specs}
    for spec in specs:
        for used in spec.used.values():
            other = found.setdefault(used.name, used)
            if other.spec != used.spec:
                raise ConfigError(
                    f"{other.path} and {used.path} both hold a policy called {used.name}; rename one (metadata.name)"
                )
    return list(found.values())


class Router:
    """The policy that a request names, else the first `when:` of the default policy that holds, else the canary whose
    share the request falls in, else the default.
    """

    def __init__(self, default: str, rollouts: Mapping[str, Rollout], routes: Sequence[Route] = ()) -> None:
        """`routes` are those of the default. Raises ConfigError if the canaries together take more than everything."""
        self.default, self.routes = default, tuple(routes)
        self._shares = Shares(rollouts)

    def policy_of(self, request: Request) -> str:
        """Its task is known by now."""
        if request.speculation.policy:
            return request.speculation.policy
        routed = next((route.policy for route in self.routes if route.when.holds(request)), None)
        return routed or self._shares.taker(request.id) or self.default
