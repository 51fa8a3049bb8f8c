"""`adaptspec policy simulate` and `policy tune` on recorded traffic; the exit status is 0."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from adaptspec.analysis.journal_tape import narrowed, tape_of_journal
from adaptspec.analysis.search_space import Parameter, parameters_of, parse_parameter
from adaptspec.analysis.simulation_report import plot_report, plotting, simulate
from adaptspec.analysis.tune import Tuned, tune
from adaptspec.commands.arguments import progress, tell
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.loader import found_next_to, load_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.language.yaml_source import read_text
from adaptspec.errors import ConfigError
from adaptspec.simulation.machine import Machine, load_machine, machines_of
from adaptspec.simulation.scenarios import Schedule, mixed_scenarios, task_scenarios
from adaptspec.simulation.simulator import SimulatorSettings
from adaptspec.simulation.tape import Tape, join
from adaptspec.simulation.tape_file import BUNDLED, find_tape, load_tape

TAPE_LIMITS = (
    "A tape or journal cannot show other texts (of draft temperatures or lossy verification), other arrivals and "
    "queueing, limits of memory, or what requests share, such as cached prompts."
)


def run_simulate(arguments: argparse.Namespace) -> int:
    """Compare policies on recorded traffic. Raises TapeError, ConfigError, PolicyError: an argument cannot be used, or
    costs have impossible results.
    """
    if arguments.plot is not None:
        plotting()  # if matplotlib is missing, fail before the simulation
    tape, machines = _recorded(arguments)
    if arguments.temperature is not None:
        tape = tape.at_temperature(arguments.temperature)
    if arguments.requests < 0:
        raise ConfigError(f"--requests {arguments.requests}: give a number of requests, or 0 for all")
    tape = tape.thinned(arguments.requests) if arguments.requests else tape
    policies = _policies(arguments, tape)
    scenarios = (mixed_scenarios if arguments.mixed else task_scenarios)(tape, _schedules(arguments.batch))
    settings = SimulatorSettings(prefill_tokens=arguments.prefill, noise=arguments.noise, seed=arguments.seed)
    with progress("simulate", len(scenarios) * len(machines)) as tick:
        report = simulate(policies, scenarios, machines, settings, tick=tick)
    report.check()
    if arguments.plot is not None:
        plot_report(report, arguments.plot)
    return tell(arguments, report.to_json(), (report.table(), report.summary(), report.legend(), TAPE_LIMITS))


def _policies(arguments: argparse.Namespace, tape: Tape) -> list[PolicySpec]:
    """The policies to simulate. From a journal they lose the drafters that it cannot replay, which is reported."""
    names = [*arguments.policies, *(name for name in arguments.policy if name not in arguments.policies)]
    policies = [load_policy_spec(find_policy(name)) for name in names or ["goodput"]]
    if len({spec.name for spec in policies}) < len(policies):
        raise ConfigError("two of the policies have one name; rename one of them (metadata.name)")
    if arguments.journal is None:
        return policies
    known = tuple(tape.drafters)
    replayed = [narrowed(spec, known) for spec in policies]
    for before, after in zip(policies, replayed, strict=True):
        missing = [name for name in before.drafters if name not in after.drafters]
        if missing:
            sys.stderr.write(
                f"policy {before.name} is simulated without {', '.join(missing)}: a journal can replay only drafts of "
                f"{', '.join(known)}\n"
            )
    return replayed


def _recorded(arguments: argparse.Namespace) -> tuple[Tape, list[Machine]]:
    """The requests to replay, and the machines to replay them on."""
    machines = [load_machine(name) for name in arguments.cost]
    if arguments.journal is None:
        tape = join([load_tape(find_tape(name)) for name in arguments.tape])
        return tape, machines or machines_for(tape)
    read = tape_of_journal(arguments.journal, arguments.seed)
    sys.stderr.write(
        f"{arguments.journal}: {len(read.tape)} whole requests; whether the draft agrees is known for {read.known:.0%} "
        "of their positions, and drawn from these for the others. Costs are fitted to "
        f"{read.rounds} rounds, {read.plain} of them plain"
        f"{'' if read.plain else ': ratios to plain decoding rest on what the server measured at its start'}\n"
    )
    return read.tape, machines or [read.machine]


def machines_for(tape: Tape) -> list[Machine]:
    """The shipped machines of a tape's model, or those of the bundled pair, which is reported."""
    found = machines_of(tape.about)
    if found:
        return found
    found = machines_of(load_tape(find_tape(BUNDLED)).about)
    names = ", ".join(machine.label for machine in found)
    sys.stderr.write(
        f"no machine of the tape's model ships: its requests are replayed on {names}, which time another model. "
        "Measure your own with `adaptspec bench record --costs-out FILE`, and give it with --cost FILE\n"
    )
    return found


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
    done = 0
    with progress("tune", 100) as tick:

        def advance(share: float) -> None:
            nonlocal done
            percent = int(100 * share)
            tick(advance=percent - done)
            done = percent

        found = tune(
            text,
            space,
            tape,
            _schedules(arguments.batch),
            machines,
            budget=arguments.budget,
            seed=arguments.seed,
            find=found_next_to(path.parent),
            tick=advance,
        )
    if arguments.out is not None:
        try:
            arguments.out.write_text(found.best.text if found.improves else text, encoding="utf-8")
        except OSError as error:
            message = f"--out {arguments.out}: cannot be written ({error.strerror}); choose another file"
            raise ConfigError(message) from error
    return tell(arguments, found.to_json(), _tuned(found, space, arguments.out))


def _tuned(found: Tuned, space: list[Parameter], out: Path | None) -> list[str]:
    lines = ["searched:", *(f"  {one}" for one in space)]
    if not found.best.values:
        lines.append(f"none of {len(found.trials)} candidates beat the original on the prompts searched on.")
    else:
        lines.append(f"best of {len(found.trials)} candidates, {found.best.gain:.3f} x the original where searched:")
        lines += [f"  {'.'.join(path)}: {value}" for path, value in found.best.values.items()]
        lines.append(
            f"held-out prompts: {found.before:,.0f} tokens per second before, {found.after:,.0f} after: "
            f"{found.gain:.3f} x (90 %: {found.low:.3f} to {found.high:.3f})"
        )
    if found.improves:
        return [
            *lines,
            "the held-out prompts confirm it." + (f" Written to {out}." if out else " Write it with --out."),
        ]
    return [*lines, "no gain is shown: keep the original." + (f" {out} is the original." if out else "")]


def _schedules(text: str) -> list[Schedule]:
    return [Schedule.parse(part.strip()) for part in text.split(",")]
