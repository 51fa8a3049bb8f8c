"""The verification methods by name. Adding one touches its file, its test and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from adaptspec.errors import ConfigError
from adaptspec.verification.coupled import Coupled
from adaptspec.verification.method import Method
from adaptspec.verification.rejection import Rejection

_ALL: tuple[Method, ...] = (Coupled(), Rejection())

METHODS: Mapping[str, Method] = MappingProxyType({method.name: method for method in _ALL})


def method(name: str) -> Method:
    """The method a policy names. Raises ConfigError if there is none of that name."""
    try:
        return METHODS[name]
    except KeyError:
        known = ", ".join(sorted(METHODS))
        raise ConfigError(f"there is no verification method {name!r}; use one of: {known}") from None
