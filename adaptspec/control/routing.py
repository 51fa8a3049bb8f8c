"""The policy that decides for a request: chosen once, when the request arrives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """The policies, then those that they use and that are not among them. Raises ConfigError: two policies have one
    name.
    """
    found = {spec.name: spec for spec in specs}
    for spec in specs:
        for used in spec.used.values():
            other = found.setdefault(used.name, used)
            if other.spec != used.spec:
                raise _two_files(used.name, other.path, used.path)
    return list(found.values())


def check_file(name: str, path: Path, served: Path) -> None:
    """Raises ConfigError: a policy is served from another file than the one at `path`, which has the same name."""
    if served.resolve() != path.resolve():
        raise _two_files(name, served, path)


def check_when(spec: PolicySpec, served: Iterable[PolicySpec]) -> None:
    """Raises PolicyError: a policy has `when:`, and one of those that are served uses it."""
    for other in served:
        if spec.spec.when and any(used.name == spec.name for used in other.used.values()):
            raise spec.source.error(
                ("spec", "when"), f"{other.name} uses this policy, so it cannot use others itself", at_key=True
            )


def _two_files(name: str, one: Path, other: Path) -> ConfigError:
    return ConfigError(f"{one} and {other} both hold a policy called {name}; rename one (metadata.name)")


class Router:
    """The policy that a request names, else the first `when:` of the default policy that holds, else the canary whose
    share the request falls in, else the default.
    """

    def __init__(self, default: str, rollouts: Mapping[str, Rollout], routes: Sequence[Route] = ()) -> None:
        """`routes` are those of the default. Raises ConfigError if the canaries together take more than everything."""
        self.default, self.routes = default, tuple(routes)
        self._shares = Shares(rollouts)

    def policy_of(self, request: Request) -> str:
        """The name of the policy that decides for a request, whose task has been detected or named."""
        if request.speculation.policy:
            return request.speculation.policy
        routed = next((route.policy for route in self.routes if route.when.holds(request)), None)
        return routed or self._shares.taker(request.id) or self.default
