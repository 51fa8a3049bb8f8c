"""Flags of settings for `argparse`: they keep what was given, for `load` to read."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal, get_args

from adaptspec.command_line import flag_of
from adaptspec.settings.fields import Field, Given, field_of, fields_of
from adaptspec.settings.sources import warn_of_earlier_name


def add_flags(
    parser: argparse.ArgumentParser, cls: type, leave_out: Collection[str] = ()
) -> dict[str, argparse.Action]:
    """Add the flags of a dataclass, but for those of some fields; returns the action of each field.

    Parsing puts the given ones into `settings` of the namespace, for `load`.
    """
    fields = [field for field in fields_of(cls) if field.name not in leave_out]
    groups = {field.group: parser.add_argument_group(field.group) for field in fields if field.setting.flag}
    actions = {}
    for field in fields:
        if field.setting.flag:
            actions[field.name] = _add_flag(groups[field.group], field)
    parser.set_defaults(settings=dict.fromkeys(field.name for field in fields))
    return actions


def words_of(config: Any) -> list[str]:
    """The flags that give a configuration, of all settings that are not as by default; secrets are left out."""
    words = []
    for field in fields_of(type(config)):
        value = getattr(config, field.name)
        if value == field.default or not field.setting.flag or field.setting.secret:
            continue
        if isinstance(value, bool):
            words.append(flag_of(field.name if value else f"no_{field.name}"))
            continue
        for one in value if isinstance(value, tuple) else [value]:
            words += [flag_of(field.name), _word(one)]
    return words


def _word(value: object) -> str:
    if value is None:
        return "none"
    return json.dumps(value) if isinstance(value, dict) else str(value)


def argument_type(hint: Any) -> Callable[[str], Any]:
    """The `type` of an argument of `argparse` that is no setting, such as `Annotated[int, Ge(1)]`."""
    field = field_of("", hint)

    def read(text: str) -> Any:
        try:
            return field.convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


class _StoreFlag(argparse.Action):
    """Puts the value of a flag into `settings` of the namespace. `current`: the flag that replaces an earlier one."""

    def __init__(
        self, option_strings: list[str], dest: str, *, field: Field, current: str = "", **options: Any
    ) -> None:
        hidden = {"help": argparse.SUPPRESS} if current else {}
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, **{**options, **hidden})
        self._field, self._current = field, current

    def __call__(self, _: object, namespace: Any, values: Any, option_string: str | None = None) -> None:
        name, flag = self._field.name, str(option_string)
        if self._current:
            warn_of_earlier_name(flag, self._current)
        value = self.const if self.nargs == 0 else values
        if self._field.type is tuple:
            earlier = namespace.settings[name]
            value = [*(earlier.value if earlier else ()), *([value] if isinstance(value, str) else value)]
        namespace.settings = {**namespace.settings, name: Given(flag, value)}


def _add_flag(group: argparse._ArgumentGroup, field: Field) -> argparse.Action:
    """The flag of a field, and hidden ones for its earlier names and for the other value of a switch."""

    def add(name: str, **options: Any) -> argparse.Action:
        return group.add_argument(flag_of(name), action=_StoreFlag, dest=field.name, field=field, **options)

    shown = {"help": _help(field)}
    if field.type is not bool:
        value = {
            "metavar": field.setting.metavar or field.name.rpartition("_")[2].upper(),
            "nargs": "+" if field.setting.several else None,
        }
        for alias in field.setting.aliases:
            add(alias, current=flag_of(field.name), **value)
        action = add(field.name, **shown, **value)
        if field.type is Literal:
            action.completer = lambda **_: get_args(field.kind)  # type: ignore[attr-defined]  # of argcomplete
        return action
    prefixes = {True: "", False: "no_"}
    for word, prefix in prefixes.items():
        for alias in field.setting.aliases:
            add(prefix + alias, nargs=0, const=word, current=flag_of(prefix + field.name))
    add(prefixes[field.default] + field.name, nargs=0, const=field.default, help=argparse.SUPPRESS)
    return add(prefixes[not field.default] + field.name, nargs=0, const=not field.default, **shown)


def _help(field: Field) -> str:
    line = field.doc.partition("\n")[0].removesuffix(".")
    if field.default is True:
        line = f"do not {line[0].lower()}{line[1:]}"
    if field.type is Literal:
        line = f"{line}: {field.what}"
    has_default = isinstance(field.default, str | int | float | Path) and not isinstance(field.default, bool)
    return f"{line} (default: {field.default})".replace("%", "%%") if has_default else line.replace("%", "%%")
