"""`adaptspec doctor`: whether speculation pays here, with which drafter, and what would help."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from adaptspec.command_line import add_table_forms, given_values
from adaptspec.commands.arguments import (
    add_runner,
    add_threads,
    device,
    engine_config,
    new_file,
    positive,
    progress,
    seconds,
    tell,
)
from adaptspec.errors import ConfigError

_PER_TASK = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec doctor`."""
    parser.description = (
        "Try a model on this machine in its data types and with drafts, and say which is fastest, what each draft "
        "would earn, by task, whether speculation is worth it at all, and what would help. One request at a time, "
        "greedy. Nothing else should run meanwhile."
    )
    add = parser.add_argument
    add("--model", default="bundled", help="the target, as of `adaptspec serve` (default: %(default)s)")
    add(
        "--draft",
        dest="drafts",
        action="append",
        default=[],
        help="a draft model of whatever tokenizer, a head, quantized:int8 or :int4, first-layers:N, mtp, none, or all "
        "(of the target itself, and the bundled one for the bundled target); may be repeated (default: the bundled one "
        "for the bundled target, and quantized:int8). Lookup and counts are tried in any case",
    )
    add("--allow-pickle", action="store_true", help="read plain tensors out of a head's .bin or .pt files")
    add("--counts", default="auto", metavar="FILE", help="counts of a corpus to draft from (default: the model's own)")
    add("--prompts", type=Path, metavar="FILE", help="JSONL of task, source, prompt (default: one of each task)")
    add("--tokens", type=positive, default=128, help="most tokens per answer (default: %(default)s)")
    add(
        "--seconds",
        type=seconds,
        default=90.0,
        help="how long all of it may take: prompts and tokens are chosen to fit (default: %(default)s)",
    )
    add("--device", type=device, default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    add(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16", "float16"],
        help="(default: all for which this CPU has fast products)",
    )
    add_runner(parser)
    add_threads(parser)
    add("--write", type=new_file, metavar="FILE", help="write the policy that was found best, such as policy.yaml")
    add_table_forms(parser, json=True)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    began = time.monotonic()  # libraries take some of the time to load
    from adaptspec.bench.doctor import (
        DoctorSettings,
        doctor_configs,
        doctor_drafts,
        doctor_report,
        doctor_steps,
        run_doctor,
    )
    from adaptspec.bench.workloads import read_workloads

    if arguments.tokens < 2:
        raise ConfigError("--tokens is 1; a timing needs at least 2")
    file = arguments.write or Path("policy.yaml")
    if file.suffix not in {".yaml", ".yml"}:
        raise ConfigError(f"--write {file}: a policy's name ends in .yaml")
    config, workloads = engine_config(arguments), read_workloads(arguments.prompts, _PER_TASK)
    drafts, configs = doctor_drafts(config, arguments.drafts), doctor_configs(config)
    settings = DoctorSettings(arguments.tokens, max(0.0, arguments.seconds - (time.monotonic() - began)))
    with progress("doctor", doctor_steps(len(configs), drafts, workloads)) as tick:
        result = run_doctor(configs, drafts, workloads, settings, tick, progress=partial(tick, advance=0))
    serve = shlex.join(_serving(arguments, result, file))
    hint = "" if arguments.write else "  (--write policy.yaml writes the policy)"
    status = tell(arguments, {**result, "serve": serve}, doctor_report(result, serve + hint))
    if arguments.write is not None:
        head = f"# Of `adaptspec doctor`: {result['best']['mean']:.2f} x plain decoding is to be expected.\n# {serve}\n"
        try:
            file.write_text(head + result["policy"], encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--write {file}: cannot be written ({error.strerror}); choose another file") from error
    return status


def _serving(arguments: argparse.Namespace, result: Mapping[str, Any], policy: Path) -> list[str]:
    """The command that serves what was found best."""
    draft, given = result["best"]["draft"] if result["worth"] else None, given_values(arguments)
    same = [part for name in ("counts", "device") if name in given for part in (f"--{name}", given[name])]
    same += [part for name in ("dtype", "runner") if result[name] != "auto" for part in (f"--{name}", result[name])]
    same += ["--policy", str(policy), *(["--allow-pickle"] if draft and arguments.allow_pickle else [])]
    return ["adaptspec", "serve", "--model", arguments.model, "--draft", draft or "none", *same]
