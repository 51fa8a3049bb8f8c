"""`adaptspec train ...`: models from a corpus."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

from adaptspec.command_line import add_table_forms, given_values
from adaptspec.commands.arguments import new_file, positive
from adaptspec.control.task_detector import SHIPPED


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec train`."""
    what = parser.add_subparsers(metavar="WHAT", required=True)
    for name, arguments_of, told in (
        ("pair", _add_train_pair, "train a target and a draft that share a tokenizer"),
        ("tasks", _add_train_tasks, "train the detector that reads a request's task off its prompt"),
        ("counts", _add_train_counts, "count a corpus for the counts drafter"),
        ("draft", partial(_add_distillation, "draft"), "train a small draft model for a target"),
        ("eagle", partial(_add_distillation, "eagle"), "train an EAGLE-3 head for a target"),
        ("medusa", partial(_add_distillation, "medusa"), "train Medusa heads for a target"),
        ("dflash", partial(_add_distillation, "dflash"), "train a DFlash head for a target"),
    ):
        own = what.add_parser(name, help=told)
        of_corpus = "JSONL, plain or .xz: task, src, and prompt + completion or text"
        own.add_argument("--corpus", type=Path, required=True, help=of_corpus)
        arguments_of(own)


def _add_train_pair(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Train a tokenizer and a target on a corpus, distil a draft from the target, measure both and write a model "
        "card. Run the same command again to go on where it stopped."
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs/pair"), help="work directory (default: %(default)s)")
    add("--prompts", type=Path, help="JSONL file or folder to measure on (default: held-out records)")
    add("--preset", choices=["auto", "cpu", "gpu"], default="auto", help="sizes and times")
    add("--target-minutes", type=float, help="training time of the target (default: the preset's)")
    add("--draft-minutes", type=float, help="training time of the draft (default: the preset's)")
    for flag, kind, what in (
        ("--target-learning-rate", float, "peak learning rate of the target"),
        ("--draft-learning-rate", float, "peak learning rate of the draft"),
        ("--vocab-size", int, "entries of the tokenizer"),
        ("--batch", int, "windows per step"),
        ("--window", int, "tokens per window"),
        ("--device", str, "cpu, cuda or cuda:N"),
    ):
        add(flag, type=kind, help=f"{what} (default: the preset's)")
    add(
        "--source-weight",
        action="append",
        default=[],
        metavar="SOURCE=SHARE",
        help="train on this share (0 to 1) of a source's records; may be given again (default: the preset's)",
    )
    parser.set_defaults(run=_train_pair)


def _add_train_tasks(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Train the task detector on a corpus, choose its settings by sources left out, report how often it is "
        "right, and write a card beside it. Takes a few minutes on a CPU."
    )
    add = parser.add_argument
    add("--prompts", type=Path, help="JSONL file or folder to measure on (default: held-out records)")
    add("--out", type=new_file, default=SHIPPED, help="file to write (default: the one that is used)")
    add_table_forms(parser)
    parser.set_defaults(run=_train_tasks)


def _add_train_counts(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Count what follows what in a corpus, in the tokens of a model, for the counts drafter. In the model's folder, "
        "as counts.npz, it is used whenever the model is served; from elsewhere by serve --counts FILE. A few minutes."
    )
    add = parser.add_argument
    add("--model", default="bundled", help="directory or hub id of the target (default: %(default)s)")
    add("--out", type=new_file, required=True, help="file to write, such as counts.npz")
    add(
        "--contexts",
        type=positive,
        default=2**16,
        metavar="N",
        help="contexts to keep, those that say most: some 20 bytes each (default: %(default)s)",
    )
    add(
        "--tokens",
        type=positive,
        default=30_000_000,
        metavar="N",
        help="tokens to count at most; a million needs 200 MB (default: %(default)s)",
    )
    parser.set_defaults(run=_train_counts)


def _add_distillation(kind: str, parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Have the target answer the corpus's prompts, learn to draft its answers, measure how often that is right, and "
        "write a model card. Run the same command again to go on where it stopped."
    )
    add = parser.add_argument
    add("--target", default="bundled", help="directory or hub id of the target (default: %(default)s)")
    add("--out", type=Path, required=True, help="work directory; the result is in a folder of it")
    add("--answers", type=Path, help="folder for the target's answers, which runs may share (default: OUT/answers)")
    add("--prompts", type=Path, help="JSONL file or folder to measure on (default: held-out records)")
    add("--beside", help="draft model to measure beside it (default: the bundled one for the bundled target)")
    add("--count", type=positive, metavar="N", help="prompts that the target answers (default: 12000)")
    add("--tokens", type=positive, metavar="N", help="of an answer at most (default: 256)")
    add("--temperature", type=float, help="of every second answer, the others are greedy (default: 0.8)")
    for flag, of, what in (
        ("--minutes", float, "training time"),
        ("--depth", positive, "tokens to draft"),
        ("--learning-rate", float, "peak learning rate"),
        ("--batch", positive, "windows per step"),
        ("--window", positive, "tokens per window"),
        ("--device", str, "cpu, cuda or cuda:N"),
    ):
        add(flag, type=of, help=f"{what} (default: what suits)")
    if kind != "eagle":
        add("--layers", type=positive, help="layers of its own (default: what suits)")
    if kind in ("eagle", "dflash"):
        more = "draft only the N most frequent tokens (default: 32000 of large vocabularies, else all)"
        add("--draft-vocab", type=positive, metavar="N", help=more)
    parser.set_defaults(run=partial(_distil, kind))


def _distil(kind: str, arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from adaptspec.engine.engine_config import BUNDLED, model_path
    from adaptspec.training.distillation import DistillationSettings, distil
    from adaptspec.training.teacher_answers import AnswerSettings

    given = given_values(arguments)
    answers = AnswerSettings(**{name: given[name] for name in ("count", "tokens", "temperature") if name in given})
    own = {field.name for field in fields(DistillationSettings)} - {"target", "answers"}
    settings = DistillationSettings(
        kind,
        model_path(arguments.target, "target"),
        answers=answers,
        **{name: value for name, value in given.items() if name in own},
    )
    beside = arguments.beside or (BUNDLED if arguments.target == BUNDLED else None)
    distil(
        arguments.corpus,
        arguments.out,
        settings,
        Console(stderr=True),
        answers=arguments.answers,
        prompts=arguments.prompts,
        beside=model_path(beside, "draft") if beside else None,
    )
    return 0


def _train_counts(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from adaptspec.engine.engine_config import model_path
    from adaptspec.training.corpus_counting import count_corpus

    count_corpus(
        arguments.corpus,
        model_path(arguments.model, "target"),
        arguments.out,
        Console(stderr=True),
        contexts=arguments.contexts,
        most_tokens=arguments.tokens,
    )
    return 0


def _train_pair(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from adaptspec.training.pair import train_pair
    from adaptspec.training.pair_settings import preset

    given = given_values(arguments)
    others = {"corpus", "out", "prompts", "preset", "source_weight"}
    base = replace(preset(arguments.preset), **{name: value for name, value in given.items() if name not in others})
    settings = base.with_source_weights(arguments.source_weight)
    train_pair(arguments.corpus, arguments.out, settings, Console(stderr=True), arguments.prompts)
    return 0


def _train_tasks(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from adaptspec.training.task_training import train_tasks

    train_tasks(arguments.corpus, arguments.out, Console(stderr=True), arguments.prompts, arguments.form)
    return 0
