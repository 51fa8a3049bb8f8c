"""The names by which clients may ask for the model: `--served-model-name`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adaptspec.errors import ConfigError, UnknownModelError
from adaptspec.server.api.wire import MAX_NAME, shown

ANY_NAME = "*"  # among the names: every name is served


@dataclass(frozen=True)
class ServedNames:
    """At least one name; the first stands in answers, metrics and traces. `any_name`: others are served as well."""

    names: tuple[str, ...]
    any_name: bool = False

    @classmethod
    def of(cls, given: Sequence[str], own: str) -> ServedNames:
        """The names that were configured; the model's `own` if there are none. Raises ConfigError."""
        for name in given:
            if not (0 < len(name) <= MAX_NAME and name.isprintable()):
                raise ConfigError(
                    f"--served-model-name {name[:MAX_NAME]!r} cannot be used: a name has 1 to {MAX_NAME} printable "
                    "characters"
                )
        names = tuple(dict.fromkeys(name for name in given if name != ANY_NAME))
        return cls(names or (own,), ANY_NAME in given)

    def check(self, name: str | None) -> None:
        """Raise UnknownModelError unless `name` is served; None means the first one."""
        if name is not None and name not in self.names and not self.any_name:
            served = " or ".join(f"`{one}`" for one in self.names)
            raise UnknownModelError(f"the model {shown(name)} is not served here; ask for {served}", "model")
