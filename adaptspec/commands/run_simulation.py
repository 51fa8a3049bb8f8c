"""`adaptspec policy simulate` on recorded traffic; the exit status is 0."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from adaptspec.analysis.journal_tape import narrowed, tape_of_journal
from adaptspec.analysis.report import simulate
from adaptspec.analysis.sweep import SweptParameter, candidates, sweep
from adaptspec.commands.output import print_result, progress
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.loader import found_next_to, load_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.language.yaml_source import read_yaml
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
    tape, machines = _recorded(arguments)
    if arguments.temperature is not None:
        tape = tape.at_temperature(arguments.temperature)
    tape = tape.thinned(arguments.requests) if arguments.requests else tape
    settings = SimulatorSettings(prefill_tokens=arguments.prefill, noise=arguments.noise, seed=arguments.seed)
    if arguments.settings:
        if arguments.mixed:
            raise ConfigError("--set always mixes all tasks; leave --mixed out")
        return _sweep(arguments, tape, machines, settings)
    policies = _policies(arguments, tape)
    scenarios = (mixed_scenarios if arguments.mixed else task_scenarios)(tape, _schedules(arguments.batch))
    with progress("simulate", len(scenarios) * len(machines)) as tick:
        report = simulate(policies, scenarios, machines, settings, tick=tick)
    report.check()
    return print_result(arguments, report.to_json(), (report.table(), report.summary(), report.legend(), TAPE_LIMITS))


def _sweep(arguments: argparse.Namespace, tape: Tape, machines: list[Machine], settings: SimulatorSettings) -> int:
    """Compare values of parameters of one policy."""
    names = _names(arguments)
    if len(names) > 1:
        raise ConfigError(f"--set compares values of one policy; name one of {', '.join(names)}")
    tried = [SweptParameter.parse(text) for text in arguments.settings]
    path = find_policy(names[0])
    found = candidates(read_yaml(path), tried, found_next_to(path.parent))
    original, *specs = _replayable(arguments, tape, [load_policy_spec(path), *(one.spec for one in found)])
    found = [replace(one, spec=spec) for one, spec in zip(found, specs, strict=True)]
    with progress("simulate", 2 + len(found)) as tick:
        result = sweep(original, found, tape, _schedules(arguments.batch), machines, settings=settings, tick=tick)
    return print_result(arguments, result.to_json(), (result.table(), result.sentence(), TAPE_LIMITS))


def _names(arguments: argparse.Namespace) -> list[str]:
    names = [*arguments.policies, *(name for name in arguments.policy if name not in arguments.policies)]
    return names or ["goodput"]


def _policies(arguments: argparse.Namespace, tape: Tape) -> list[PolicySpec]:
    policies = [load_policy_spec(find_policy(name)) for name in _names(arguments)]
    if len({spec.name for spec in policies}) < len(policies):
        raise ConfigError("two of the policies have one name; rename one of them (metadata.name)")
    return _replayable(arguments, tape, policies)


def _replayable(arguments: argparse.Namespace, tape: Tape, policies: list[PolicySpec]) -> list[PolicySpec]:
    """The policies; from a journal without the drafters that it cannot replay, which is reported once for each name."""
    if arguments.journal is None:
        return policies
    known = tuple(tape.drafters)
    reported = set[str]()
    replayed = [narrowed(spec, known) for spec in policies]
    for before, after in zip(policies, replayed, strict=True):
        missing = [name for name in before.drafters if name not in after.drafters]
        if missing and before.name not in reported:
            reported.add(before.name)
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


def _schedules(text: str) -> list[Schedule]:
    return [Schedule.parse(part.strip()) for part in text.split(",")]
