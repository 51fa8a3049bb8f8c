"""`adaptspec train ...`: drafters for a target, corpus counts, and a task detector."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from adaptspec.commands.arguments import new_file, positive
from adaptspec.commands.output import add_json
from adaptspec.settings import add_flags, load
from adaptspec.training.config import KINDS, DistillConfig

# Settings that a kind of drafter does not have.
_NOT_OF = {"draft": ("draft_vocab",), "eagle": ("layers",), "medusa": ("draft_vocab",)}
_CORPUS = "JSONL (plain or .xz) with messages, prompt or text in each line, or a text file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec train`."""
    commands = parser.add_subparsers(metavar="WHAT", required=True)
    for kind, (title, *_) in KINDS.items():
        _add_distill(kind, commands.add_parser(kind, help=f"train {title} for a target"))
    _add_counts(commands.add_parser("counts", help="count a corpus for the counts drafter"))
    _add_tasks(commands.add_parser("tasks", help="train a detector for tasks of your own"))


def _add_distill(kind: str, parser: argparse.ArgumentParser) -> None:
    parser.usage = f"adaptspec train {kind} --corpus FILE --out DIR [--model MODEL] [FLAG ...]"
    parser.description = (
        f"Train {KINDS[kind].title} on the target's own answers to the prompts of a corpus, and measure it. How long "
        "that takes is measured and printed first. The same command continues a run that was stopped."
    )
    add_flags(parser, DistillConfig, _NOT_OF.get(kind, ()))
    parser.set_defaults(run=partial(_distill, kind))


def _add_counts(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Count what follows what in a corpus, in the tokens of a model, for the counts drafter. In the model's folder, "
        "as counts.npz, it is used whenever the model is served; from elsewhere by serve --counts FILE. A few minutes."
    )
    add = parser.add_argument
    add("--corpus", type=Path, required=True, help=_CORPUS)
    add("--model", default="bundled", help="the target: a directory, a GGUF file or a hub id (default: %(default)s)")
    add("--out", type=new_file, required=True, help="file to write, such as counts.npz")
    contexts = "contexts to keep, those that save most: some 20 bytes each (default: %(default)s)"
    add("--contexts", type=positive, default=2**16, metavar="N", help=contexts)
    tokens = "tokens to count at most; a million needs 200 MB (default: %(default)s)"
    add("--max-tokens", "--tokens", type=positive, default=30_000_000, metavar="N", help=tokens)
    parser.set_defaults(run=_counts)


def _add_tasks(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Train a detector that recognises your tasks from prompts, for serve --task-detector FILE. Prints its accuracy "
        "on held-out lines and which tasks it takes for which."
    )
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="JSONL (plain or .xz) with task and prompt in each line")
    add("--out", type=new_file, default=Path("tasks.npz"), help="file to write (default: %(default)s)")
    add_json(parser)
    parser.set_defaults(run=_tasks)


def _distill(kind: str, arguments: argparse.Namespace) -> int:
    from rich.console import Console

    config = load(DistillConfig, arguments.settings, kind=kind)

    from adaptspec.training.distill import distill

    distill(config, Console(stderr=True))
    return 0


def _counts(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from adaptspec.config import model_path
    from adaptspec.training.corpus_counts import count_corpus

    count_corpus(
        arguments.corpus,
        model_path(arguments.model, "target"),
        arguments.out,
        Console(stderr=True),
        contexts=arguments.contexts,
        max_tokens=arguments.max_tokens,
    )
    return 0


def _tasks(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from adaptspec.training.task_training import train_tasks

    report = train_tasks(arguments.file, arguments.out, Console(stderr=True))
    print(report.to_json() if arguments.json else report.to_text())
    return 0
