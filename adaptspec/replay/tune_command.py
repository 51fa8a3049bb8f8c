"""What the command `policy tune` does."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from adaptspec.control.language.build import load_policy_spec
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.yaml_source import read_text
from adaptspec.errors import ConfigError
from adaptspec.replay.costs import load_costs, shipped_costs
from adaptspec.replay.search_space import Parameter, parameters_of, parse_parameter
from adaptspec.replay.streams import Schedule
from adaptspec.replay.tape import join
from adaptspec.replay.tape_file import find_tape, load_tape
from adaptspec.replay.tune import Tuned, tune


def run_tune(arguments: argparse.Namespace) -> int:
    """Search, print, and write what the held-out prompts confirm; the exit status is 0.

    Raises:
        TapeError, ConfigError, PolicyError: an argument cannot be used.
    """
    if arguments.budget < 1 or arguments.requests < 0 or arguments.seed < 0:
        raise ConfigError("--budget is at least 1, --requests and --seed at least 0")
    path = find_policy(arguments.policy)
    spec, text = load_policy_spec(path), read_text(path)
    space = [parse_parameter(one) for one in arguments.space] or parameters_of(spec)
    if not space:
        raise ConfigError(f"{path}: it has no number to tune; name what to search with --set")
    tape = join([load_tape(find_tape(name)) for name in arguments.tape])
    tape = tape.thinned(arguments.requests) if arguments.requests else tape
    machines = [load_costs(name) for name in arguments.cost or shipped_costs()[:1]]
    schedules = [Schedule.parse(one.strip()) for one in arguments.batch.split(",")]
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("tune", total=1.0)
        found = tune(
            text,
            space,
            tape,
            schedules,
            machines,
            budget=arguments.budget,
            seed=arguments.seed,
            tick=lambda share: progress.update(bar, completed=share),
        )
    if arguments.out is not None:
        _write(arguments.out, found.best.text if found.improves else text)
    if arguments.json:
        sys.stdout.write(json.dumps(found.to_json(), indent=1, allow_nan=False) + "\n")
    else:
        sys.stdout.write("\n".join(_sentences(found, space, arguments.out)) + "\n")
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {path}: cannot be written ({error.strerror}); choose another file") from error


def _sentences(found: Tuned, space: list[Parameter], out: Path | None) -> list[str]:
    said = ["searched:", *(f"  {one}" for one in space)]
    if not found.best.values:
        said.append(f"none of {len(found.trials)} candidates beat the original on the prompts searched on.")
    else:
        said.append(f"best of {len(found.trials)} candidates, {found.best.gain:.3f} x the original where searched:")
        said += [f"  {'.'.join(path)}: {value}" for path, value in found.best.values.items()]
        said.append(
            f"held-out prompts: {found.before:,.0f} tokens per second before, {found.after:,.0f} after: "
            f"{found.gain:.3f} x (90 %: {found.low:.3f} to {found.high:.3f})"
        )
    if found.improves:
        return [*said, "the held-out prompts confirm it." + (f" Written to {out}." if out else " Write it with --out.")]
    return [*said, "no gain is shown: keep the original." + (f" {out} is the original." if out else "")]
