"""The parser of the command line: what a flag does not say, the environment may (`--max-rows`: `ADAPTSPEC_MAX_ROWS`).

Flags win over variables, variables over defaults. Imports nothing that takes time: completion in a shell builds it anew
for every key.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

PREFIX = "ADAPTSPEC_"
TEXT, MARKDOWN, CSV = "text", "markdown", "csv"  # forms of what commands print
# Flags of an engine that there once were, and what to do instead.
REMOVED_FLAGS: Mapping[str, str] = {
    "--draft-device": "leave it out: a draft model is on the device of its target, where no step waits for a copy",
    "--exact": "leave it out: every start tries up to how many tokens of a pass drafts change no text, and says it",
}
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class Lines(argparse._AppendAction):
    """As `append`; its variable holds one value in each line, since commas may be part of them."""


class Parser(argparse.ArgumentParser):
    """After parsing, `given` tells by destination which flag or variable set it; what is not in there is a default."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self._told: set[argparse.Action] = set()  # whose help names their variables
        super().__init__(*args, **more)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As `argparse`, and then what the environment says of flags that were not given."""
        flags = [action for action in self._actions if action.option_strings and action.dest not in ("help", "version")]
        self._say_variables(flags)
        asked = {action: self._from_environment(action) for action in flags}
        defaults = {action: action.default for action in flags}
        for action in flags:
            # Left out of the result, a default can be told from a flag that says the same.
            action.default = argparse.SUPPRESS
            action.required = action.required and asked[action] is None
        found, rest = super().parse_known_args(args, namespace)
        given = {action.dest: action.option_strings[0] for action in flags if hasattr(found, action.dest)}
        by_flag = set(given)
        for action, variable in asked.items():
            if variable is not None and not by_flag & self._rivals(action):
                self._set(found, action, variable, given)
        for action, default in defaults.items():
            action.default = default
            if not hasattr(found, action.dest):
                setattr(found, action.dest, self._get_value(action, default) if isinstance(default, str) else default)
        found.given = {**getattr(found, "given", {}), **given}
        return found, rest

    def _say_variables(self, flags: Sequence[argparse.Action]) -> None:
        """Name them in the help, whose defaults have to be told before they are put aside."""
        for action in flags:
            if action.help == argparse.SUPPRESS or action in self._told:
                continue
            self._told.add(action)
            words = (action.help or "").replace("%(default)s", str(action.default))
            action.help = f"{words} [{', '.join(variables(action))}]".lstrip()

    def _from_environment(self, action: argparse.Action) -> str | None:
        """The variable that is set for a flag; empty ones are as good as none."""
        names = [name for name in variables(action) if os.environ.get(name)]
        if len(names) > 1:
            self.error(f"{names[0]} and {names[1]} are one setting; set one of them")
        return names[0] if names else None

    def _rivals(self, action: argparse.Action) -> set[str]:
        """Destinations that leave no room for this one: its own, and those of flags that exclude each other."""
        groups = [group._group_actions for group in self._mutually_exclusive_groups if action in group._group_actions]
        return {action.dest}.union(*({other.dest for other in group} for group in groups))

    def _set(self, found: argparse.Namespace, action: argparse.Action, variable: str, given: dict[str, str]) -> None:
        """Take a variable for a flag. One that switches nothing on says nothing."""
        text = os.environ[variable]
        try:
            if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
                value: Any = self._switched(action, text)
            elif isinstance(action, argparse._AppendAction) or action.nargs in ("+", "*"):
                parts = text.splitlines() if isinstance(action, Lines) else text.split(",")
                value = [self._one(action, part.strip()) for part in parts if part.strip()]
            else:
                value = self._one(action, text.strip())
        except argparse.ArgumentError as error:
            self.error(f"{variable}: {error.message}")
        if value is None:
            return
        rivals = given.keys() & self._rivals(action)
        if rivals:
            self.error(f"{variable} and {given[rivals.pop()]} exclude each other; set one of them")
        setattr(found, action.dest, value)
        given[action.dest] = variable

    def _switched(self, action: argparse.Action, text: str) -> Any:
        on = _WORDS.get(text.strip().lower())
        if on is None:
            raise argparse.ArgumentError(action, f"{text!r} is neither true nor false")
        if isinstance(action, argparse.BooleanOptionalAction) or isinstance(action.const, bool):
            return on
        return action.const if on else None

    def _one(self, action: argparse.Action, text: str) -> Any:
        value = self._get_value(action, text)
        self._check_value(action, value)
        return value


def variables(action: argparse.Action) -> list[str]:
    """The environment variables of a flag, one for each of its long names."""
    names = [name for name in action.option_strings if name.startswith("--")]
    if isinstance(action, argparse.BooleanOptionalAction):
        names = [name for name in names if not name.startswith("--no-")]
    return list(map(variable, names))


def variable(flag: str) -> str:
    """The environment variable of a long flag."""
    return PREFIX + flag.removeprefix("--").replace("-", "_").upper()


def later(work: str) -> Callable[[argparse.Namespace], int]:
    """What a command does, as `module:function`: imported when it is called, for it may take seconds to load."""
    module, _, name = work.partition(":")

    def run(arguments: argparse.Namespace) -> int:
        return int(getattr(import_module(module), name)(arguments))

    return run


def add_table_forms(parser: argparse.ArgumentParser, *, json: bool = False) -> None:
    """Let users choose the form of the tables a command prints; with `json` also one JSON object in their place."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--markdown", dest="form", action="store_const", const=MARKDOWN, default=TEXT, help="print Markdown"
    )
    group.add_argument(
        "--csv", dest="form", action="store_const", const=CSV, default=TEXT, help="print tables as CSV, and no more"
    )
    if json:
        group.add_argument("--json", action="store_true", help="print one JSON object")


def given_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """What flags and variables set, by destination: all but defaults."""
    return {name: getattr(arguments, name) for name in arguments.given}
