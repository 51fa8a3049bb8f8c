"""What `adaptspec policy simulate` and `policy tune` do on recorded traffic; the exit status is 0."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from adaptspec.analysis.journal_tape import narrowed, tape_of_journal
from adaptspec.analysis.search_space import Parameter, parameters_of, parse_parameter
from adaptspec.analysis.simulation_report import plot_report, plotting, simulate
from adaptspec.analysis.tune import Tuned, tune
from adaptspec.commands.arguments import tell
from adaptspec.control.language.build import found_next_to, load_policy_spec
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.language.yaml_source import read_text
from adaptspec.errors import ConfigError
from adaptspec.simulation.cost_profiles import MachineCosts, load_costs, shipped_costs
from adaptspec.simulation.scenarios import Schedule, mixed_scenarios, task_scenarios
from adaptspec.simulation.simulator import SimulatorSettings
from adaptspec.simulation.tape import Tape, join
from adaptspec.simulation.tape_file import find_tape, load_tape


def run_simulate(arguments: argparse.Namespace) -> int:
    """Compare policies on recorded traffic. Raises TapeError, ConfigError, PolicyError: an argument cannot be used, or
    costs have impossible results.
    """
    if arguments.plot is not None:
        plotting()  # missing, it should not cost a whole simulation to find out
    tape, machines = _recorded(arguments)
    if arguments.temperature is not None:
        tape = tape.at_temperature(arguments.temperature)
    if arguments.requests < 0:
        raise ConfigError(f"--requests {arguments.requests}: give a number of requests, or 0 for all")
    tape = tape.thinned(arguments.requests) if arguments.requests else tape
    policies = _policies(arguments, tape)
    scenarios = (mixed_scenarios if arguments.mixed else task_scenarios)(tape, _schedules(arguments.batch))
    settings = SimulatorSettings(prefill_tokens=arguments.prefill, noise=arguments.noise, seed=arguments.seed)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("simulate", total=len(scenarios) * len(machines))
        report = simulate(policies, scenarios, machines, settings, tick=lambda: progress.advance(bar))
    report.check()
    if arguments.plot is not None:
        plot_report(report, arguments.plot)
    return tell(arguments, report.to_json(), [report.table(), report.summary()])


def _policies(arguments: argparse.Namespace, tape: Tape) -> list[PolicySpec]:
    """What is to be simulated; from a journal with the drafters that it can replay, and a word on those left out."""
    policies = [load_policy_spec(find_policy(name)) for name in arguments.policy or ["goodput"]]
    if len({spec.name for spec in policies}) < len(policies):
        raise ConfigError("two of the policies have one name; rename one of them (metadata.name)")
    if arguments.journal is None:
        return policies
    known = tuple(tape.drafters)
    here = [narrowed(spec, known) for spec in policies]
    for asked, replayed in zip(policies, here, strict=True):
        missing = [name for name in asked.drafters if name not in replayed.drafters]
        if missing:
            sys.stderr.write(
                f"policy {asked.name} is simulated without {', '.join(missing)}: a journal can replay only drafts of "
                f"{', '.join(known)}\n"
            )
    return here


def _recorded(arguments: argparse.Namespace) -> tuple[Tape, list[MachineCosts]]:
    costs = [load_costs(name) for name in arguments.cost]
    if arguments.journal is None:
        return _tapes(arguments.tape), costs or [load_costs(name) for name in shipped_costs()]
    read = tape_of_journal(arguments.journal, arguments.seed)
    sys.stderr.write(
        f"{arguments.journal}: {len(read.tape)} whole requests; whether the draft agrees is known for {read.known:.0%} "
        "of their positions, and drawn from these for the others. Costs are fitted to "
        f"{read.rounds} rounds, {read.plain} of them plain"
        f"{'' if read.plain else ': ratios to plain decoding rest on what the server measured at its start'}\n"
    )
    return read.tape, costs or [read.costs]


def run_tune(arguments: argparse.Namespace) -> int:
    """Search parameters, and write what the held-out prompts confirm. Raises TapeError, ConfigError, PolicyError: an
    argument cannot be used.
    """
    if arguments.budget < 1 or arguments.requests < 0 or arguments.seed < 0:
        raise ConfigError("--budget is at least 1, --requests and --seed at least 0")
    path = find_policy(arguments.policy)
    spec, text = load_policy_spec(path), read_text(path)
    space = [parse_parameter(one) for one in arguments.space] or parameters_of(spec)
    if not space:
        raise ConfigError(f"{path}: it has no number to tune; name what to search with --set")
    tape, machines = _recorded(arguments)
    tape = tape.thinned(arguments.requests) if arguments.requests else tape
    machines = machines if arguments.cost else machines[:1]  # each takes as long again
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("tune", total=1.0)
        found = tune(
            text,
            space,
            tape,
            _schedules(arguments.batch),
            machines,
            budget=arguments.budget,
            seed=arguments.seed,
            find=found_next_to(path.parent),
            tick=lambda share: progress.update(bar, completed=share),
        )
    if arguments.out is not None:
        try:
            arguments.out.write_text(found.best.text if found.improves else text, encoding="utf-8")
        except OSError as error:
            said = f"--out {arguments.out}: cannot be written ({error.strerror}); choose another file"
            raise ConfigError(said) from error
    return tell(arguments, found.to_json(), _tuned(found, space, arguments.out))


def _tuned(found: Tuned, space: list[Parameter], out: Path | None) -> list[str]:
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


def _tapes(names: list[str]) -> Tape:
    return join([load_tape(find_tape(name)) for name in names])


def _schedules(text: str) -> list[Schedule]:
    return [Schedule.parse(one.strip()) for one in text.split(",")]
