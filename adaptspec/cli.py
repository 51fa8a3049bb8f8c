"""The command line: finds the command that is named, calls it, prints errors one per line.

Only that command's module is imported: what serving or training needs takes seconds to load, and `--help` none of it.
"""

from __future__ import annotations

import argparse
import atexit
import itertools
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
from adaptspec.command_line import REMOVED_FLAGS
from adaptspec.errors import AdaptSpecError, ConfigError

# Each is a module `adaptspec.commands.NAME_command` whose `add_arguments(parser)` sets `run(arguments) -> exit status`.
COMMANDS: Mapping[str, str] = {
    "serve": "start an OpenAI-compatible HTTP server",
    "generate": "complete one prompt here in the terminal",
    "pull": "fetch a model, so that starts need no network",
    "policy": "list, check, simulate and explain policies",
    "top": "watch a server in the terminal",
    "host": "policies inside vLLM and SGLang",
    "doctor": "say what speculation would earn on this machine, and what would help",
    "bench": "measure speed and exactness, record tapes",
    "train": "train models",
}

# Commands that there once were, and what to run instead.
REMOVED: Mapping[tuple[str, ...], str] = {
    ("policy", "estimate"): "replay a journal with `adaptspec policy simulate --journal FILE --policy NEW`, or write "
    "`rollout: {mode: canary, percent: 1}` in NEW to serve it to some requests",
    ("policy", "tune"): "`adaptspec policy simulate FILE --set spec.choose.depth=1,2,4` compares values of a parameter",
    ("policy", "import"): "policies/README.md has a table of vLLM's and SGLang's settings as keys of a policy",
    ("policy", "diff"): "compare two files with `diff`, or what they earn with `adaptspec policy simulate A B`",
    ("costs",): "every start learns what rounds take here, and no table is cached; `adaptspec bench record --costs-out "
    "FILE` writes one for simulations",
    (
        "trace",
    ): "send traces to a viewer with `adaptspec serve --otlp-traces-endpoint URL --trace-level round`, or look at a "
    "journal with `adaptspec policy explain --journal FILE --request ID`",
    ("state",): "a server saves what it learns in its --state-dir by itself, and goes on from it at the next start",
    (
        "bench",
        "decisions",
    ): "a server's `/metrics` has the seconds of rounds, drafts and verification; the rest is deciding",
    ("bench", "policies"): "it is `adaptspec bench speed --policy A --policy B` now, next to plain decoding",
    ("bench", "trees"): "`adaptspec policy simulate A B` compares policies of other `max-width` and `max-depth`",
    ("bench", "telemetry"): "no answer waits for a collector or a disk; `/metrics` counts what they lose",
    ("bench", "gpu"): "`pytest -m gpu tests/gpu`, in a clone of the repository, checks kernels and texts on a GPU; "
    "`python -m adaptspec.bench.gpu --out DIR` measures its speed",
    (
        "train",
        "pair",
    ): "`python -m examples.recipes.pair`, in a clone of the repository, trains a pair; `adaptspec train "
    "draft` trains a draft model for a target",
    ("bench", "heads"): "`adaptspec bench speed --draft HEAD` measures a head of yours",
}

# Modules that print warnings about leaked objects at interpreter exit, below the error message.
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
        sys.stdout.flush()  # here, so that a closed pipe raises BrokenPipeError below
        return status
    except AdaptSpecError as error:
        for line in str(error).splitlines():
            print(f"adaptspec: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output, such as `head`, has closed the pipe. Later output is discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # 128 + SIGPIPE, as shells report it


def _complete() -> None:
    """Answer a shell's completion request (argcomplete) and exit."""
    if "_ARGCOMPLETE" in os.environ:
        import_module("argcomplete").autocomplete(_parser(os.environ["COMP_LINE"].split()[1:]))


def _refuse_removed(given: Sequence[str]) -> None:
    """Raise ConfigError for a command of `REMOVED` and a flag of `REMOVED_FLAGS`; those after `--` are others'."""
    for words, instead in REMOVED.items():
        if tuple(given[: len(words)]) == words:
            raise ConfigError(f"`adaptspec {' '.join(words)}` was removed; {instead}")
    flags = {word.partition("=")[0] for word in itertools.takewhile(lambda word: word != "--", given)}
    for flag, instead in REMOVED_FLAGS.items():
        if flag in flags:
            raise ConfigError(f"{flag} was removed; {instead}")


class _Help(argparse.HelpFormatter):
    """Leaves more room for flags next to their help."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="adaptspec",
        description="Serve language models with adaptive speculative decoding: the same text, sooner.",
        epilog="Start with `adaptspec serve`: it needs no arguments and serves the bundled model pair.",
    )
    parser.add_argument("--version", action="version", version=f"adaptspec {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, what in COMMANDS.items():
        command = commands.add_parser(name, help=what, formatter_class=_Help)
        if given[:1] == [name]:
            import_module(f"adaptspec.commands.{name}_command").add_arguments(command)
    return parser
