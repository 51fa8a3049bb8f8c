"""`adaptspec doctor`: whether speculation pays here, with which drafter, and what would help."""

from __future__ import annotations

import argparse
import shlex
from functools import partial
from pathlib import Path

from adaptspec.command_line import add_table_forms, given_values
from adaptspec.commands.arguments import add_threads, device, engine_config, new_file, positive, progress, tell
from adaptspec.errors import ConfigError

_PER_TASK = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `adaptspec doctor`."""
    parser.description = (
        "Try drafts for a model on this machine and say what each would earn, by task, whether speculation is worth it "
        "at all, and what would help. One request at a time, greedy. Nothing else should run meanwhile."
    )
    add = parser.add_argument
    add("--model", default="bundled", help="directory or hub id of the target (default: %(default)s)")
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
    add("--tokens", type=positive, default=128, help="tokens per answer (default: %(default)s)")
    add("--device", type=device, default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    add("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"], help="(default: %(default)s)")
    add_threads(parser)
    add("--write", type=new_file, metavar="FILE", help="write the policy that was found best, such as policy.yaml")
    add_table_forms(parser, json=True)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from adaptspec.bench.doctor import doctor_drafts, doctor_report, doctor_steps, run_doctor
    from adaptspec.bench.workloads import read_workloads

    if arguments.tokens < 2:
        raise ConfigError("--tokens is 1; a timing needs at least 2")
    file = arguments.write or Path("policy.yaml")
    if file.suffix not in {".yaml", ".yml"}:
        raise ConfigError(f"--write {file}: a policy's name ends in .yaml")
    config, workloads = engine_config(arguments), read_workloads(arguments.prompts, _PER_TASK)
    drafts = doctor_drafts(config, arguments.drafts)
    with progress("doctor", doctor_steps(drafts, workloads)) as tick:
        result = run_doctor(config, drafts, workloads, arguments.tokens, tick, progress=partial(tick, advance=0))
    serve = shlex.join(_serving(arguments, result["best"]["draft"] if result["worth"] else None, file))
    hint = "" if arguments.write else "  (--write policy.yaml writes the policy)"
    status = tell(arguments, {**result, "serve": serve}, doctor_report(result, serve + hint))
    if arguments.write is not None:
        head = f"# Of `adaptspec doctor`: {result['best']['mean']:.2f} x plain decoding is to be expected.\n# {serve}\n"
        try:
            file.write_text(head + result["policy"], encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--write {file}: cannot be written ({error.strerror}); choose another file") from error
    return status


def _serving(arguments: argparse.Namespace, draft: str | None, policy: Path) -> list[str]:
    given = given_values(arguments)
    same = [part for name in ("counts", "device", "dtype") if name in given for part in (f"--{name}", given[name])]
    same += ["--policy", str(policy), *(["--allow-pickle"] if draft and arguments.allow_pickle else [])]
    return ["adaptspec", "serve", "--model", arguments.model, "--draft", draft or "none", *same]
