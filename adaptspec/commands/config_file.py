"""The file of `serve --config`: what `serve --show-config` prints, read back with the line of whatever is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from adaptspec.app import ServeConfig
from adaptspec.control.language.spec_errors import problems_of
from adaptspec.control.language.yaml_source import Source, policy_error, read_yaml
from adaptspec.errors import ConfigError

# Of secrets a configuration shows only this much.
_SECRETS: Mapping[str, Any] = {"api_keys": int, "admin_key": bool}
# What the command line checks while it parses has to hold here, too.
_COUNT, _SECONDS = Annotated[int, Field(ge=1)], Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
_BOUNDS: Mapping[str, Any] = {
    **dict.fromkeys(("max_waiting", "journal_bytes", "journal_files", "max_rows", "prefill_tokens"), _COUNT),
    **dict.fromkeys(("context", "cache_tokens"), _COUNT | None),
    "drain_seconds": _SECONDS,
    "slow_seconds": _SECONDS | None,
    "round_share": Annotated[float, Field(ge=0.0, le=1.0)],
}
_Settings = TypeVar("_Settings")


@dataclass(frozen=True)
class ConfigFile:
    """A configuration without its keys, of which the file only says that there are some."""

    source: Source
    config: ServeConfig
    secrets: Mapping[str, Any]

    def check_keys(self, config: ServeConfig) -> None:
        """Refuse a server that the file wants closed, and that nobody gave keys to.

        Raises:
            ConfigError: keys are missing; says where the file speaks of them.
        """
        for name, has, how in (
            ("api_keys", bool(config.api_keys), "ADAPTSPEC_API_KEY or --api-key-file"),
            ("admin_key", config.admin_key is not None, "ADAPTSPEC_ADMIN_KEY or --admin-key-file"),
        ):
            if self.secrets.get(name) and not has:
                raise self.source.error((name,), f"keys are not kept in this file; give them by {how}", at_key=True)


def read_config(path: Path) -> ConfigFile:
    """Read a configuration; what it does not say is as by default.

    Raises:
        ConfigError: it cannot be read, or has keys or values that cannot be used; says where.
    """
    source = read_yaml(path)
    model = _model(ServeConfig, {**_BOUNDS, **_SECRETS})
    try:
        read = model.model_validate(source.data)
    except ValidationError as error:
        raise policy_error(problems_of(source, error, model.model_json_schema())) from error
    secrets = {name: getattr(read, name) for name in _SECRETS if name in read.model_fields_set}
    try:
        return ConfigFile(source, _settings(ServeConfig, read, secrets), secrets)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def shown_config(config: ServeConfig) -> dict[str, Any]:
    """What a configuration says, but for its secrets: of them, how many there are."""
    values: dict[str, Any] = {
        name: str(value) if isinstance(value, Path) else value for name, value in asdict(config).items()
    }
    values["engine"]["policies"] = list(config.engine.policy_names)
    values["traces"]["level"] = config.traces.level.value
    for part in ("traces", "push"):
        values[part]["endpoint"] = _without_login(values[part]["endpoint"])
    values["allowed_hosts"] = list(config.allowed_hosts)
    values["api_keys"] = len(config.api_keys)
    values["admin_key"] = config.admin_key is not None
    return values


def _model(kind: type, instead: Mapping[str, Any]) -> type[BaseModel]:
    """A model of a class of settings, in which unknown keys are errors; `instead` has other types for some fields."""
    hints = {**get_type_hints(kind), **instead}
    known: dict[str, Any] = {}
    for one in fields(kind):
        hint = hints[one.name]
        known[one.name] = (_model(hint, _BOUNDS) if isinstance(hint, type) and is_dataclass(hint) else hint, None)
    return create_model(kind.__name__, __config__=ConfigDict(extra="forbid"), **known)


def _settings(kind: type[_Settings], read: BaseModel, left_out: Mapping[str, Any]) -> _Settings:
    """Settings of what was read; what was not is as by default."""
    hints = get_type_hints(kind)
    values = {name: getattr(read, name) for name in read.model_fields_set if name not in left_out}
    return kind(
        **{
            name: _settings(hints[name], value, {}) if isinstance(value, BaseModel) else value
            for name, value in values.items()
        }
    )


def _without_login(url: str | None) -> str | None:
    """An address without the name and password that it may hold."""
    if url is None:
        return None
    scheme, separator, rest = url.rpartition("://")
    place, slash, path = rest.partition("/")
    return scheme + separator + place.rpartition("@")[2] + slash + path
