"""The contract of the command line: flags and defaults of every command, environment variables, keys of files.

Parsers are looked at while the program parses its arguments, as a user's shell would call it: how it is put together
is not part of the contract.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

import adaptspec
from adaptspec.cli import COMMANDS, main
from adaptspec.command_line import flag_of, variable
from adaptspec.errors import ConfigError
from adaptspec.hosts.settings import PilotSettings
from tests.files.contracts import Document, flattened, name_set

_ROOT = Path(adaptspec.__file__).parents[1]
_WIDE = {"COLUMNS": "10000", "NO_COLOR": "1"}


async def record(folder: Path) -> Document:
    """Commands with their flags and variables, configuration keys with defaults and the errors for wrong values."""
    with mock.patch.dict(os.environ, _WIDE):
        for name in [name for name in os.environ if name.startswith("ADAPTSPEC_")]:
            del os.environ[name]
        commands = {"adaptspec": {"commands": name_set(COMMANDS)}}
        for name in COMMANDS:
            commands |= {" ".join(words): _flags(parser) for words, parser in _parsers([name], _parser(name))}
        config = yaml.safe_load(printed("serve", "--show-config"))
        wrong = {path: _config_error(folder, path) for path in flattened(config)}
        os.environ["ADAPTSPEC_ADMIN_KEY"] = "sesame"
        keyed = yaml.safe_load(printed("serve", "--show-config"))["admin_key"]
    return {
        "commands": commands,
        "configuration": {"defaults": config, "wrong": wrong, "admin_key with ADAPTSPEC_ADMIN_KEY": keyed},
        "hosts": {"settings": PilotSettings().model_dump(mode="json", by_alias=True), "unknown": _unknown_setting()},
    }


class _ParserFoundError(Exception):
    """Carries the parser out of the program."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def _parser(command: str) -> argparse.ArgumentParser:
    """The parser of one command, found among those of the program."""

    def found(self: argparse.ArgumentParser, *_: Any) -> None:
        raise _ParserFoundError(self)

    with mock.patch.object(argparse.ArgumentParser, "parse_args", found):
        try:
            main([command])
        except _ParserFoundError as error:
            return _subparsers(error.parser)[command]
    raise AssertionError("the program parsed nothing")


def _parsers(words: list[str], parser: argparse.ArgumentParser) -> Iterator[tuple[list[str], argparse.ArgumentParser]]:
    """The parser and those of its subcommands, each with the words that lead to it."""
    yield words, parser
    for name, inner in _subparsers(parser).items():
        yield from _parsers([*words, name], inner)


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: inner for group in groups for name, inner in group.choices.items()}


def _flags(parser: argparse.ArgumentParser) -> Document:
    """Arguments by name, flags that exclude each other, and the variables of its settings."""
    left_out = argparse._SubParsersAction | argparse._HelpAction
    actions = [action for action in parser._actions if not isinstance(action, left_out)]
    arguments = {", ".join(action.option_strings) or action.dest: _argument(action) for action in actions}
    rivals = [sorted(action.option_strings[0] for action in group._group_actions) for group in _exclusive(parser)]
    variables = [variable(flag_of(name)) for name in parser.get_default("settings") or ()]
    return {"arguments": arguments, "exclude each other": sorted(rivals), "variables": name_set(variables)}


def _exclusive(parser: argparse.ArgumentParser) -> list[argparse._MutuallyExclusiveGroup]:
    return parser._mutually_exclusive_groups


def _argument(action: argparse.Action) -> Document:
    """What of an argument is frozen. Help texts are not."""
    found = {"takes": action.nargs if action.nargs is not None else 1}
    # Defaults of settings are among those of the configuration.
    found |= {} if action.default == argparse.SUPPRESS else {"default": _plain(action.default)}
    found |= {"choices": name_set(map(str, action.choices))} if action.choices is not None else {}
    found |= {"required": True} if action.required and action.option_strings else {}
    found |= {"repeats": True} if isinstance(action, argparse._AppendAction) else {}
    return found | ({"const": _plain(action.const)} if action.const not in (None, True, False) else {})


def _plain(value: Any) -> Any:
    """As JSON has it: the text of what is no plain value, and paths from the folder of the package."""
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    if isinstance(value, int | float | None):
        return value
    return str(getattr(value, "value", value)).replace(f"{_ROOT}/", "")


def printed(*words: str) -> str:
    """What a command prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(words)
    return out.getvalue()


def _config_error(folder: Path, path: str) -> str:
    """The error for a configuration in which the key at `path` has an object that fits nowhere."""
    value: Any = {"no such key": {}}
    for key in reversed(path.split(" > ")):
        value = {key: value} if not key.isdecimal() else [value]
    file, errors = folder / "config.yaml", io.StringIO()
    file.write_text(json.dumps(value))
    with contextlib.redirect_stderr(errors):
        main(["serve", "--config", str(file), "--show-config"])
    return errors.getvalue().replace(str(file), "config.yaml").strip()


def _unknown_setting() -> str:
    try:
        PilotSettings.of({"no such setting": 1})
    except ConfigError as error:
        return str(error)
    raise AssertionError("an unknown setting was taken")
