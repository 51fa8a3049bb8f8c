"""The command line: finds the command that is named, calls it, prints errors one per line.

Only that command's module is imported: what serving or training needs takes seconds to load, and `--help` none of it.
"""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

from adaptspec import __version__
from adaptspec.command_line import REMOVED_FLAGS, Parser, variable
from adaptspec.errors import AdaptSpecError, ConfigError

# Each is a module `adaptspec.commands.NAME_command` whose `add_arguments(parser)` sets `run(arguments) -> exit status`.
COMMANDS: Mapping[str, str] = {
    "serve": "start an OpenAI-compatible HTTP server",
    "generate": "complete one prompt here in the terminal",
    "pull": "fetch a model, so that starts need no network",
    "policy": "list, check, compare, import and simulate policies",
    "top": "watch a server in the terminal",
    "host": "policies inside vLLM and SGLang",
    "trace": "make timelines of a journal",
    "state": "look at what was learned, and merge it",
    "doctor": "say what speculation would earn on this machine, and what would help",
    "bench": "measure speed and exactness, record tapes",
    "train": "train models",
}

# Commands that there once were, and what to run instead.
REMOVED: Mapping[tuple[str, ...], str] = {
    ("policy", "estimate"): "replay a journal with `adaptspec policy simulate --journal FILE --policy NEW`, or write "
    "`rollout: {mode: canary, percent: 1}` in NEW to serve it to some requests",
    ("costs",): "every start learns what rounds take here, and no table is cached; `adaptspec bench record --costs-out "
    "FILE` writes one for simulations",
    ("bench", "gpu"): "`pytest -m gpu tests/gpu`, in a clone of the repository, checks kernels and texts on a GPU; "
    "`python -m adaptspec.bench.gpu --out DIR` measures its speed",
    ("bench", "heads"): "`adaptspec bench policies --draft HEAD` measures a head of yours",
}

# Print pages about leaked objects while Python takes itself apart, below the error that a user should read.
_NOISY_AT_EXIT = frozenset({"triton"})


def run() -> NoReturn:
    """The program: one command, and the end of the process with its exit status."""
    _give_compilers_a_cache()
    status = main()
    if _NOISY_AT_EXIT & sys.modules.keys():
        # All that Python does at its end, in its order, but for taking modules apart.
        threading._shutdown()  # type: ignore[attr-defined]  # the stubs lack it
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(BrokenPipeError):
                stream.flush()
        os._exit(status)
    sys.exit(status)


def _give_compilers_a_cache() -> None:
    """Compilers of device code keep what they made in the home directory; without one, in a folder of this run."""
    if os.path.expanduser("~") != "~":
        return
    with suppress(OSError):
        folder = tempfile.mkdtemp(prefix="adaptspec-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
            os.environ.setdefault(name, folder)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is its own, or 2 for an error of the user's to mend."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        _complete()
        _refuse_removed(given)
        arguments = _parser(given).parse_args(given)
        status = int(arguments.run(arguments))
        sys.stdout.flush()  # here, where it can still be said that nobody reads on
        return status
    except AdaptSpecError as error:
        for line in str(error).splitlines():
            print(f"adaptspec: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output, such as `head`, has enough of it. What Python still writes at its end goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as a shell tells SIGPIPE


def _complete() -> None:
    """Where a shell asks how its line may go on, answer and end: what it asks of is that line, not our arguments."""
    if "_ARGCOMPLETE" in os.environ:
        import_module("argcomplete").autocomplete(_parser(os.environ["COMP_LINE"].split()[1:]))


def _refuse_removed(given: Sequence[str]) -> None:
    """Raise ConfigError for a command of `REMOVED`, and for a flag of `REMOVED_FLAGS` or its variable."""
    for words, instead in REMOVED.items():
        if tuple(given[: len(words)]) == words:
            raise ConfigError(f"`adaptspec {' '.join(words)}` was removed; {instead}")
    flags = {word.partition("=")[0] for word in given}
    for flag, instead in REMOVED_FLAGS.items():
        if flag in flags:
            raise ConfigError(f"{flag} was removed; {instead}")
        if os.environ.get(variable(flag)):
            raise ConfigError(f"{variable(flag)} was removed; {instead}")


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    parser = Parser(
        prog="adaptspec",
        description="Serve language models with adaptive speculative decoding: the same text, sooner.",
        epilog="Start with `adaptspec serve`: it needs no arguments and serves the bundled model pair.",
    )
    parser.add_argument("--version", action="version", version=f"adaptspec {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, what in COMMANDS.items():
        command = commands.add_parser(name, help=what)
        if given[:1] == [name]:
            import_module(f"adaptspec.commands.{name}_command").add_arguments(command)
    return parser
