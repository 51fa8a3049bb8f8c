"""Sources of settings: flags win over variables, variables over a file, and the file over defaults."""

from __future__ import annotations

import dataclasses
import difflib
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from adaptspec.command_line import REMOVED_FLAGS, REMOVED_KEYS, flag_of, variable
from adaptspec.errors import ConfigError
from adaptspec.settings.fields import SWITCHES, Field, Given, fields_of, shown

if TYPE_CHECKING:
    from adaptspec.control.language.yaml_source import Source

_log = logging.getLogger(__name__)
T = TypeVar("T")
# What Kubernetes writes into NAME_PORT for a service called NAME.
_SERVICE_LINK = re.compile(r"(?:tcp|udp|sctp)://\S+")
Flags = Mapping[str, Given | None]  # the flags of a command by field; None: not given


def load(
    cls: type[T],
    flags: Flags | None = None,
    file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    **fixed: Any,
) -> T:
    """Read all settings of a dataclass. With `flags`, only those of their fields are read, others are as by default.

    `fixed` are values of fields that no source sets.

    Raises ConfigError: a line for each value that cannot be used, each variable of a removed flag, each unknown or
    removed key of the file, and each secret that the file claims and that is not given.
    """
    fields = {field.name: field for field in fields_of(cls) if flags is None or field.name in flags}
    fields = {name: field for name, field in fields.items() if name not in fixed}
    in_file, claims, problems = _from_file(fields, file)
    problems += [
        f"{variable(flag)} was removed; {instead}"
        for flag, instead in REMOVED_FLAGS.items()
        if environ.get(variable(flag))
    ]
    by_flag = {name: given for name, given in (flags or {}).items() if name in fields and given is not None}
    found: dict[str, Given] = {}
    for source in (in_file, _from_variables(fields, environ), by_flag):
        rivals = {name: fields[name].setting.rival for name in source}
        problems += [
            f"{source[name].where} and {source[rival].where} exclude each other; give one of them"
            for name, rival in rivals.items()
            if rival in source and name < rival
        ]
        found = {name: given for name, given in found.items() if name not in rivals.values()} | source
    values: dict[str, Any] = {}
    for name, given in found.items():
        try:
            values[name] = fields[name].read(given)
        except ConfigError as error:
            problems.append(_service_link(given) or str(error))
    for name, where in claims.items():
        if not (values.get(name) or values.get(fields[name].setting.rival)):
            problems.append(f"{where}: {_not_kept(fields[name])}")
    problems += [
        f"{flag_of(name)} is missing; give {field.what}"
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and name not in found
    ]
    if problems:
        raise ConfigError("\n".join(problems))
    return cls(**values, **fixed)


def dump(config: Any) -> dict[str, Any]:
    """All settings as plain data that `load` reads from a file; secrets only as whether or how many there are."""
    return {field.name: field.plain(getattr(config, field.name)) for field in fields_of(type(config))}


def _from_variables(fields: Mapping[str, Field], environ: Mapping[str, str]) -> dict[str, Given]:
    """What variables set; empty ones set nothing. Raises ConfigError for two names of one setting."""
    found: dict[str, Given] = {}
    for field in fields.values():
        names = [field.name, *field.setting.aliases]
        negated = [f"no_{name}" for name in names] if field.type is bool else []
        for name in (*names, *negated):
            given = variable(flag_of(name))
            text = environ.get(given)
            if not text:
                continue
            if field.name in found:
                raise ConfigError(f"{found[field.name].where} and {given} are one setting; set one of them")
            if name.removeprefix("no_") in field.setting.aliases:
                warn_of_earlier_name(given, variable(flag_of(field.name)))
            found[field.name] = Given(given, _without(text) if name in negated else _split(field, text))
    return found


def _split(field: Field, text: str) -> str | list[str]:
    """The texts of a variable for a list: a secret in each line, others with commas."""
    if field.type is not tuple:
        return text
    parts = text.splitlines() if field.setting.secret else text.split(",")
    return [part.strip() for part in parts if part.strip()]


def _without(text: str) -> str:
    """The value of x by the variable of a flag such as `--no-x`."""
    return {True: "false", False: "true"}.get(SWITCHES.get(text.strip().lower()), text)  # type: ignore[arg-type]


def _from_file(fields: Mapping[str, Field], file: Path | None) -> tuple[dict[str, Given], dict[str, str], list[str]]:
    """The values of a file, where it claims that there are secrets, and what is wrong with its keys."""
    if file is None:
        return {}, {}, []
    from adaptspec.control.language.yaml_source import read_yaml  # noqa: PLC0415 - most commands read no file

    source = read_yaml(file)
    if not isinstance(source.data, dict):
        raise source.error((), "settings are needed here, such as `port: 8000`")
    names = {name: field.name for field in fields.values() for name in (field.name, *field.setting.aliases)}
    found: dict[str, Given] = {}
    claims: dict[str, str] = {}
    problems: list[str] = []
    for key, value in source.data.items():
        where, written = _position(source, key, at_key=True), str(key).replace("-", "_")
        name = names.get(written)
        if name is None:
            problems.append(f"{where}: {_unknown_key(written, list(fields))}")
        elif name in found or name in claims:
            problems.append(f"{where}: it is one setting with {name}; write {name} only")
        elif fields[name].setting.secret:
            if isinstance(value, bool | int) and value >= 0:
                claims |= {name: where} if value else {}
            else:
                problems.append(f"{where}: {_not_kept(fields[name])}")
        else:
            if written != name:
                warn_of_earlier_name(where, name)
            found[name] = Given(_position(source, key, at_key=False), value, file.parent)
    return found, claims, problems


def _position(source: Source, key: object, *, at_key: bool) -> str:
    """`file:line:column: key`, for the key or its value."""
    problem = source.problem((key,), "", at_key)
    return f"{problem.file}:{problem.line}:{problem.column}: {problem.where}"


def _unknown_key(key: str, known: list[str]) -> str:
    if key in REMOVED_KEYS:
        return REMOVED_KEYS[key]
    if flag_of(key) in REMOVED_FLAGS:
        return f"there is no {key} any more; {REMOVED_FLAGS[flag_of(key)]}"
    near = difflib.get_close_matches(key[:80].lower(), known, n=1, cutoff=0.6)
    return f"unknown key (did you mean {near[0]!r}?)" if near else f"unknown key; there are: {', '.join(known)}"


def _not_kept(field: Field) -> str:
    variable_of = variable(flag_of(field.name))
    return f"keys are not kept in this file; give them by {variable_of} or {flag_of(field.setting.rival)}"


def _service_link(given: Given) -> str | None:
    """The error for a variable that Kubernetes sets by itself."""
    if not (isinstance(given.value, str) and given.where.endswith("_PORT") and _SERVICE_LINK.fullmatch(given.value)):
        return None
    return (
        f"{given.where}: {shown(given.value)} is what Kubernetes sets for a service of this name, not a port to "
        "listen on; write `enableServiceLinks: false` into the pod's spec, or give the service another name"
    )


def warn_of_earlier_name(earlier: str, current: str) -> None:
    """Log what a flag, a variable or a key is called now."""
    _log.warning("%s is called %s now; the next release no longer knows the earlier name", earlier, current)
