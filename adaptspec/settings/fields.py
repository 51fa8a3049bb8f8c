"""Settings as fields of dataclasses: their declarations, and values as fields hold them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import math
import os
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import ge, gt, le
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le

from adaptspec.errors import ConfigError

SWITCHES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_BOUNDS: Mapping[type, tuple[str, Callable[[Any, Any], bool]]] = {
    Ge: ("of at least", ge),
    Gt: ("above", gt),
    Le: ("at most", le),
}
_LARGEST = 2**63 - 1
_MAX_DIGITS = 20  # of a number that is converted at all
_MAX_SHOWN = 60  # characters of a value in an error


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Annotates a field with what its type does not say.

    `group`: the heading of this field and those after it. `aliases`: earlier names. `metavar`: the value in the help.
    `what`: the values that are accepted, in words. `pattern` and `check` (which raises ValueError) refuse others.
    `none`: the word `none` is None. `several`: one flag takes several values. `is_file`: whether a text is the path of
    a file, which a configuration file names from its own folder. `flag`: False for a variable only. `secret`: it is in
    no message, a file says only how many there are, and a variable has one in each line. `rival`: the field that
    excludes this one.
    """

    group: str = ""
    aliases: tuple[str, ...] = ()
    metavar: str = ""
    what: str = ""
    pattern: str = ""
    check: Callable[[Any], object] | None = None
    none: bool = False
    several: bool = False
    is_file: Callable[[str], bool] | None = None
    flag: bool = True
    secret: bool = False
    rival: str = ""


class Given(NamedTuple):
    """A value that was given: a text, a list of texts, or plain data of a file.

    `where` is the flag, the variable or the line; relative paths start at `folder`, if there is one.
    """

    where: str
    value: object
    folder: Path | None = None


@dataclass(frozen=True)
class Field:
    """One setting of a dataclass. `kind` is its type without None."""

    name: str
    kind: Any
    optional: bool
    default: Any
    bounds: tuple[object, ...]
    setting: Setting
    doc: str
    group: str = ""

    @property
    def type(self) -> Any:
        """The type that decides how values are read, such as `tuple` or `Literal`."""
        return get_origin(self.kind) or self.kind

    @property
    def what(self) -> str:
        """The accepted values in words."""
        if self.setting.what:
            return self.setting.what
        if self.type is Literal:
            return _either(get_args(self.kind))
        limits = [f"{_BOUNDS[type(bound)][0]} {_limit(bound):g}" for bound in self.bounds]
        return f"{_READERS[self.type][0]} {' and '.join(limits)}".rstrip()

    def read(self, given: Given) -> Any:
        """The value as the field holds it. Raises ConfigError: it cannot be used, and what can."""
        try:
            value = self.convert(given.value)
        except ValueError as error:
            raise ConfigError(f"{given.where}: {error}") from error
        return value if given.folder is None else self._from_folder(value, given.folder)

    def convert(self, value: object) -> Any:
        """A text or plain data of a file as the field holds it. Raises ValueError: what to give instead."""
        try:
            return self._convert(value)
        except ValueError as error:
            given = "" if self.setting.secret else f", not {shown(value)}"
            raise ValueError(str(error) or f"give {self.what}{given}") from error

    def _convert(self, value: object) -> Any:
        if self.optional and (value is None or (self.setting.none and value == "none")):
            return None
        converted = _READERS[self.type][1](self, value)
        if not all(_BOUNDS[type(bound)][1](converted, _limit(bound)) for bound in self.bounds):
            raise ValueError
        if self.setting.pattern and not re.fullmatch(self.setting.pattern, converted):
            raise ValueError
        if self.setting.check is not None:
            self.setting.check(converted)
        return converted

    def _from_folder(self, value: Any, folder: Path) -> Any:
        """Paths of a value from a folder; `~` is the home, where there is one."""
        if isinstance(value, tuple):
            return tuple(self._from_folder(item, folder) for item in value)
        if isinstance(value, Path):
            return Path(folder, os.path.expanduser(value))
        is_file = self.setting.is_file
        return str(Path(folder, os.path.expanduser(value))) if is_file and value and is_file(value) else value

    def plain(self, value: Any) -> Any:
        """The value as a file holds it: paths from the root, no secrets, no logins in addresses."""
        if self.setting.secret:
            return len(value) if isinstance(value, tuple) else value is not None
        value = self._from_folder(value, Path.cwd())
        if isinstance(value, tuple):
            return list(value)
        if isinstance(value, Path):
            return str(value)
        return _without_login(value) if isinstance(value, str) else value


def fields_of(cls: type) -> tuple[Field, ...]:
    """The settings of a dataclass, those of its bases first."""
    hints, docs, group, found = get_type_hints(cls, include_extras=True), _docstrings(cls), "", []
    for field in dataclasses.fields(cls):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        described = field_of(field.name, hints[field.name], default, docs.get(field.name, ""))
        group = described.setting.group or group
        found.append(dataclasses.replace(described, group=group))
    return tuple(found)


def field_of(name: str, hint: Any, default: Any = None, doc: str = "") -> Field:
    """A setting of an annotated type."""
    hint, *annotations = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    options = get_args(hint) if NoneType in get_args(hint) else (hint,)
    return Field(
        name,
        options[0],
        len(options) > 1,
        default,
        tuple(one for one in annotations if type(one) in _BOUNDS),
        next((one for one in annotations if isinstance(one, Setting)), Setting()),
        doc,
    )


def _text(_: Field, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    if not value.strip():
        raise ValueError("it is empty; give a value, or leave it out")
    return value


def _integer(_: Field, value: object) -> int:
    if isinstance(value, str) and re.fullmatch(rf"\s*[-+]?[0-9]{{1,{_MAX_DIGITS}}}\s*", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _LARGEST:
        raise ValueError
    return value


def _number(_: Field, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError from None  # without Python's own message
    if not math.isfinite(number):
        raise ValueError
    return number


def _boolean(_: Field, value: object) -> bool:
    word = SWITCHES.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(word, bool):
        raise ValueError
    return word


def _choice(field: Field, value: object) -> str:
    if not isinstance(value, str) or value not in get_args(field.kind):
        raise ValueError
    return value


def _path(field: Field, value: object) -> Path:
    return Path(_text(field, value))


def _texts(field: Field, value: object) -> tuple[str, ...]:
    items = () if value is None else [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise ValueError
    return tuple(_text(field, item) for item in items)


def _mapping(_: Field, value: object) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError from None
    if not isinstance(value, dict):
        raise ValueError
    return value


# The name of each type in messages, and its reader, which raises ValueError (with a message if the name is too little).
_READERS: Mapping[Any, tuple[str, Callable[[Field, object], Any]]] = {
    str: ("a text", _text),
    int: ("a whole number", _integer),
    float: ("a number", _number),
    bool: ("true or false", _boolean),
    Path: ("a path", _path),
    tuple: ("a text or a list of texts", _texts),
    dict: ("a JSON object", _mapping),
    Literal: ("one of several words", _choice),
}


def _limit(bound: object) -> float:
    return float(getattr(bound, type(bound).__name__.lower()))


def _either(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def shown(value: object) -> str:
    """A value for a message: cut, and without the login that may be before an `@`."""
    text = repr(value.rpartition("@")[2] if isinstance(value, str) else value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def _without_login(text: str) -> str:
    """An address without the name and password that it may hold; other texts as they are."""
    scheme, separator, rest = text.partition("://")
    host, slash, path = rest.partition("/")
    return scheme + separator + host.rpartition("@")[2] + slash + path


def _docstrings(cls: type) -> dict[str, str]:
    """The docstring below each field of a dataclass and its bases."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, doc in itertools.pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(doc, ast.Expr):
                found[field.target.id] = inspect.cleandoc(str(getattr(doc.value, "value", "")))
    return found
