"""The names by which clients may ask for the model: `--served-model-name`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adaptspec.config import ANY_NAME
from adaptspec.errors import ConfigError, UnknownModelError
from adaptspec.server.api.fields import quoted
from adaptspec.server.limits import NAME_CHARACTERS


@dataclass(frozen=True)
class ServedNames:
    """At least one name; the first stands in answers, metrics and traces. `any_name`: others are served as well."""

    names: tuple[str, ...]
    any_name: bool = False

    @classmethod
    def of(cls, given: Sequence[str], own: str) -> ServedNames:
        """The names that were configured; the model's `own` if there are none. Raises ConfigError."""
        for name in given:
            if not (0 < len(name) <= NAME_CHARACTERS and name.isprintable()):
                raise ConfigError(
                    f"--served-model-name {name[:NAME_CHARACTERS]!r} cannot be used: a name has 1 to {NAME_CHARACTERS} "
                    "printable characters"
                )
        names = tuple(dict.fromkeys(name for name in given if name != ANY_NAME))
        return cls(names or (own,), ANY_NAME in given)

    def check(self, name: str | None) -> None:
        """Raise UnknownModelError unless `name` is served; None means the first one."""
        if name is not None and name not in self.names and not self.any_name:
            served = " or ".join(f"`{one}`" for one in self.names)
            raise UnknownModelError(f"the model {quoted(name)} is not served here; ask for {served}", "model")
