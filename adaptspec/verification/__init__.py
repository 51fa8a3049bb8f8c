"""Verification: which drafted tokens are accepted. `METHODS` has the methods by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from adaptspec.errors import ConfigError
from adaptspec.verification.coupled import Coupled
from adaptspec.verification.lossy import Threshold, Typical
from adaptspec.verification.method import Method
from adaptspec.verification.rejection import Block, Rejection

METHODS: Mapping[str, Callable[..., Method]] = MappingProxyType(
    {kind.name: kind for kind in (Coupled, Rejection, Block, Threshold, Typical)}
)


def make_method(name: str, parameters: Mapping[str, float] = MappingProxyType({})) -> Method:
    """Make the method of a policy. Raises ConfigError if there is no such name or parameter."""
    if name not in METHODS:
        known = ", ".join(sorted(METHODS))
        raise ConfigError(f"unknown verification method {name!r}; use one of: {known}")
    try:
        return METHODS[name](**parameters)
    except TypeError as error:
        raise ConfigError(
            f"verification method {name!r} cannot be built with {', '.join(parameters)}: {error}"
        ) from None
