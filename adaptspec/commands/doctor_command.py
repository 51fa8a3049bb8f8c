"""`adaptspec doctor`: whether speculation pays here, with which drafter, and what would help."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptspec.commands.arguments import (
    add_engine,
    engine_config,
    new_file,
    non_negative,
    positive,
)
from adaptspec.commands.output import add_json, print_result, write_text
from adaptspec.errors import ConfigError
from adaptspec.quantity import quantity
from adaptspec.settings import words_of

if TYPE_CHECKING:
    from adaptspec.config import EngineConfig

_PER_TASK = 3
# Of the engine's settings: it tries several drafts, by prompts that name their task and have no template.
_LEFT_OUT = ("draft", "detect_tasks", "chat_template", "default_chat_template_kwargs", "sanitize_control_tokens")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec doctor`."""
    parser.description = (
        "Measure a model on this machine in its data types, with lookups and with drafts, next to plain decoding, and "
        "say what to serve it with: the answer may be not to speculate. One request at a time, greedy. Nothing else "
        "should run meanwhile."
    )
    add = parser.add_argument
    add(
        "--draft",
        dest="drafts",
        action="append",
        default=[],
        help="a draft model of whatever tokenizer, a head, quantized:int8 or :int4, first-layers:N, mtp, none, or all "
        "(of the target itself, and the bundled one for the bundled target); may be repeated (default: the bundled one "
        "for the bundled target, and quantized:int8). Lookup and counts are tried in any case",
    )
    add("--prompts", type=Path, metavar="FILE", help="JSONL of task, source, prompt (default: one of each task)")
    add("--tokens", type=positive, default=128, help="most tokens per answer (default: %(default)s)")
    add(
        "--seconds",
        type=non_negative,
        default=90.0,
        help="how long all of it may take: prompts and tokens are chosen to fit (default: %(default)s)",
    )
    add("--write", type=new_file, metavar="FILE", help="write the policy that was found best, such as policy.yaml")
    add_engine(parser, leave_out=_LEFT_OUT)
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    began = time.monotonic()  # libraries take some of the time to load
    from rich.console import Console

    from adaptspec.bench.doctor import DoctorSettings, diagnose, doctor_configs, doctor_drafts, doctor_report
    from adaptspec.bench.workloads import read_workloads
    from adaptspec.start_status import StartStatus

    if arguments.tokens < 2:
        raise ConfigError("--tokens is 1; a timing needs at least 2")
    file = arguments.write or Path("policy.yaml")
    if file.suffix not in {".yaml", ".yml"}:
        raise ConfigError(f"--write {file}: a policy's name ends in .yaml")
    config, workloads = engine_config(arguments), read_workloads(arguments.prompts, _PER_TASK)
    drafts, configs = doctor_drafts(config, arguments.drafts), doctor_configs(config)
    settings = DoctorSettings(arguments.tokens, max(0.0, arguments.seconds - (time.monotonic() - began)))
    console = Console(stderr=True)

    def done(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    with StartStatus(console, "doctor") as status:
        status(
            f"trying {quantity(len(configs), 'configuration')} and {quantity(len(drafts), 'draft')}, about "
            f"{arguments.seconds:.0f} s"
        )
        result = diagnose(configs, drafts, workloads, settings, done, progress=status)
    serve = shlex.join(_serving(config, result, file))
    hint = "" if arguments.write else "  (--write policy.yaml writes the policy)"
    status_code = print_result(arguments, {**result, "serve": serve}, doctor_report(result, serve + hint))
    if arguments.write is not None:
        mean = result["best"]["over_first"]["mean"]
        head = f"# Of `adaptspec doctor`: {mean:.2f} x plain decoding is to be expected.\n# {serve}\n"
        write_text(file, head + result["policy"], "--write")
    return status_code


def _serving(config: EngineConfig, result: Mapping[str, Any], policy: Path) -> list[str]:
    """The command that serves what was found best, as it was measured."""
    draft = result["best"]["draft"] if result["worth"] else None
    best = replace(config, draft=draft, dtype=result["dtype"], runner=result["runner"], policy=(str(policy),))
    return ["adaptspec", "serve", *words_of(best)]
