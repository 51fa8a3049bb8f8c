"""The configuration of a server: flags over variables over the file of `--config`, which `--show-config` prints."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from adaptspec.app import ServeConfig
from adaptspec.command_line import REMOVED_FLAGS, given_values
from adaptspec.commands.arguments import engine_config
from adaptspec.control.language.library import is_file_name
from adaptspec.control.language.schema import validate
from adaptspec.control.language.yaml_source import Source, read_yaml
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.errors import ConfigError
from adaptspec.files import read_text
from adaptspec.models.chat.chat_template import NONE
from adaptspec.models.chat.template_values import check_values
from adaptspec.server.auth import named_key
from adaptspec.telemetry.otlp_export import PushSettings, TraceLevel, TraceSettings

ADMIN_KEY = "ADAPTSPEC_ADMIN_KEY"
_MOST_BYTES = 2**20  # of a file of keys


# Settings that flags call otherwise, and those that are not what the flag says.
_NAMES: Mapping[str, str] = {
    "metrics_compat": "compat_vllm",
    "journal_megabytes": "journal_bytes",
    "allow_host": "allowed_hosts",
    "allow_origin": "allowed_origins",
    "otlp_endpoint": "endpoint",
    "otlp_metrics": "wanted",
    **{f"trace_{name}": name for name in ("level", "slow_seconds", "round_share", "content")},
}
_VALUES: Mapping[str, Callable[[Any], Any]] = {
    "compat_vllm": lambda value: value == "vllm",
    "journal_bytes": lambda value: value * 2**20,
    "allowed_hosts": tuple,
    "served_model_name": tuple,
    "allowed_origins": tuple,
    "level": TraceLevel,
}
_REMOVED = {f"engine.{flag.removeprefix('--').replace('-', '_')}": instead for flag, instead in REMOVED_FLAGS.items()}
# Of secrets a configuration shows only this much.
_SECRETS: Mapping[str, Any] = {"api_keys": int, "admin_key": bool}


def _one_or_several(value: Any) -> Any:
    """Names as a text or a list; null for none."""
    return () if value is None else (value,) if isinstance(value, str) else value


# What the command line checks while it parses has to hold here, too.
_COUNT, _SECONDS = Annotated[int, Field(ge=1)], Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
_BOUNDS: Mapping[str, Any] = {
    **dict.fromkeys(("max_waiting", "journal_bytes", "journal_files", "max_rows", "tensor_parallel_size"), _COUNT),
    **dict.fromkeys(("context", "cache_tokens", "threads"), _COUNT | None),
    **dict.fromkeys(("prefill_tokens", "gpu_layers"), Annotated[int, Field(ge=0)]),
    "drain_seconds": _SECONDS,
    "prefill_seconds": Annotated[float, Field(gt=0.0, allow_inf_nan=False)],
    "served_model_name": Annotated[tuple[str, ...], BeforeValidator(_one_or_several)],
}
_Settings = TypeVar("_Settings")


def serve_config(arguments: argparse.Namespace) -> ServeConfig:
    """The file of `--config`, or the defaults, and over it what flags and variables say. Raises ConfigError: a file or
    a limit cannot be used, or keys that the file speaks of are missing.
    """
    file = None if arguments.config is None else read_config(arguments.config)
    base, given = ServeConfig() if file is None else file.config, given_values(arguments)
    config = replace(
        base,
        engine=engine_config(arguments, base.engine),
        admin_key=_admin_key(arguments.admin_key_file),
        api_keys=_api_keys(given),
        traces=replace(base.traces, **_given_settings(TraceSettings, given)),
        push=replace(base.push, **_given_settings(PushSettings, given)),
        limits=base.limits.changed(given.get("limit", ())),
        **_given_settings(ServeConfig, given),
    )
    if file is not None:
        file.check_keys(config)
    return config


@dataclass(frozen=True)
class ConfigFile:
    """A configuration without its keys, of which the file only says that there are some."""

    source: Source
    config: ServeConfig
    secrets: Mapping[str, Any]

    def check_keys(self, config: ServeConfig) -> None:
        """Refuse a server that the file wants closed, and that nobody gave keys to. Raises ConfigError: keys are
        missing; says where the file speaks of them.
        """
        for name, has, how in (
            ("api_keys", bool(config.api_keys), "ADAPTSPEC_API_KEY or --api-key-file"),
            ("admin_key", config.admin_key is not None, "ADAPTSPEC_ADMIN_KEY or --admin-key-file"),
        ):
            if self.secrets.get(name) and not has:
                raise self.source.error((name,), f"keys are not kept in this file; give them by {how}", at_key=True)


def read_config(path: Path) -> ConfigFile:
    """Read a configuration; what it does not say is as by default. Files of policies and of a chat template are found
    from its folder.

    Raises ConfigError: it cannot be read, or has keys or values that cannot be used; says where.
    """
    source = read_yaml(path)
    model = _model(ServeConfig, {**_BOUNDS, **_SECRETS})
    read = validate(model, source.data, source, removed=_REMOVED)
    secrets = {name: getattr(read, name) for name in _SECRETS if name in read.model_fields_set}
    try:
        config = _settings(ServeConfig, read, secrets)
        policies = tuple(_in(path.parent, name) if is_file_name(name) else name for name in config.engine.policies)
        engine = replace(config.engine, policies=policies, chat_template=_found(path.parent, config.engine))
        return ConfigFile(source, replace(config, engine=engine), secrets)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _found(folder: Path, engine: EngineConfig) -> str | None:
    """The file of the chat template, from the folder of a configuration. Raises ConfigError for its variables."""
    try:
        check_values(engine.chat_template_kwargs)
    except ValueError as error:
        raise ConfigError(f"engine.chat_template_kwargs: {error}") from error
    name = engine.chat_template
    return name if name in (None, NONE) else _in(folder, name)


def _in(folder: Path, name: str) -> str:
    """A file by its path from a folder; `~` is the home, where there is one."""
    return str(folder / os.path.expanduser(name))


def shown_config(config: ServeConfig) -> dict[str, Any]:
    """What a configuration says, but for its secrets: of them, how many there are."""
    values: dict[str, Any] = {
        name: str(value) if isinstance(value, Path) else value for name, value in asdict(config).items()
    }
    values["engine"]["policies"] = [
        str(Path(name).absolute()) if is_file_name(name) else name for name in config.engine.policy_names
    ]
    if config.engine.chat_template not in (None, NONE):
        values["engine"]["chat_template"] = _in(Path.cwd(), config.engine.chat_template)
    values["traces"]["level"] = config.traces.level.value
    for part in ("traces", "push"):
        values[part]["endpoint"] = _without_login(values[part]["endpoint"])
    values["allowed_hosts"] = list(config.allowed_hosts)
    values["served_model_name"] = list(config.served_model_name)
    values["allowed_origins"] = list(config.allowed_origins)
    values["api_keys"] = len(config.api_keys)
    values["admin_key"] = config.admin_key is not None
    return values


def _model(kind: type, instead: Mapping[str, Any]) -> type[BaseModel]:
    """A model of a class of settings, in which unknown keys are errors; `instead` has other types for some fields."""
    hints = {**get_type_hints(kind, include_extras=True), **instead}
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


def _given_settings(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    named = {_NAMES.get(flag, flag): value for flag, value in given.items()}
    return {one.name: _VALUES.get(one.name, _same)(named[one.name]) for one in fields(kind) if one.name in named}


def _same(value: Any) -> Any:
    return value


def _api_keys(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The API keys, each with its name behind it; none where everybody may use the server."""
    file = given.get("api_key_file")
    keys = _keys(given.get("api_key", [])) if file is None else _keys_in(file, "--api-key-file")
    if not keys and "api_key" in given:
        raise ConfigError("--api-key is empty; give a key, or leave it out to serve everybody")
    return keys


def _admin_key(file: Path | None) -> str | None:
    """The admin key: a file keeps it out of the list of processes; None where nobody may change anything."""
    if file is None:
        return os.environ.get(ADMIN_KEY) or None
    key, *more = _keys_in(file, "--admin-key-file")
    if more:
        raise ConfigError(f"--admin-key-file {file}: it holds {1 + len(more)} keys; write one into it")
    return named_key(key)[0]


def _keys(lines: Iterable[str]) -> tuple[str, ...]:
    """Lines with a key, each once; blank lines and comments have none."""
    return tuple(dict.fromkeys(line.strip() for line in lines if named_key(line)[0]))


def _keys_in(file: Path, option: str) -> tuple[str, ...]:
    """The lines of a file that hold keys, of which there is at least one."""
    try:
        text = read_text(file, _MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"  # never what is in it
        raise ConfigError(f"{option} {file}: cannot be read ({reason}); give a file that holds the key") from error
    keys = _keys(text.splitlines())
    if not keys:
        raise ConfigError(f"{option} {file}: it holds no key; write the key into it, on a line without # before it")
    return keys
