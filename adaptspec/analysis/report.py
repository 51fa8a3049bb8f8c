"""What policies earn in scenarios, with plain decoding, fixed depths and oracles to compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaptspec.analysis.oracle import TIERS, References, references
from adaptspec.arrays import FloatArray
from adaptspec.control.language.spec import PolicySpec
from adaptspec.errors import ConfigError
from adaptspec.simulation.machine import Machine
from adaptspec.simulation.scenarios import WRONG, Scenario, Stream, phases_of, recovery_tokens
from adaptspec.simulation.simulator import ReplayStats, SimulatorSettings, drafters_of, replay, started
from adaptspec.tables import Table

# Requests end at other times at each depth, and clocks may be noisy: so much more than a bound is no contradiction.
_CHANCE = 1.1
# Columns of the summary: key in the JSON, format, meaning.
_SUMMARY = {
    "over off": ("mean_ratio", ".3f", "tokens per second over plain decoding"),
    "over best static": ("mean_over_best_static", ".3f", "tokens per second over the best static setting of each cell"),
    "worst over off": ("worst_ratio", ".3f", "over off in the worst cell"),
    "over per-phase best": ("over_per_phase_best", ".3f", "over the best static setting of each phase of the traffic"),
    "gap closed": ("gap_closed", ".2f", "share of the way from best static (0) to clairvoyant (1)"),
    "duty": ("duty", ".2f", "share of the rounds of requests that drafted"),
    "switches / 1,000 tokens": ("switches_per_1000_tokens", ".0f", "changes of a request's depth"),
    "probing cost": ("probing_cost", ".3f", "share of the time lost by exploring and probing; below 0: earned"),
    "tokens to recover": ("recovery_tokens", ".0f", "output until a policy is within 5 % of the best after a shift"),
}


@dataclass(frozen=True)
class CellResult:
    """One scenario on one machine: what the references and each policy earned."""

    machine: Machine
    scenario: Scenario
    references: References
    policies: Mapping[str, ReplayStats]
    recovery: Mapping[str, tuple[float, ...]]  # by policy, tokens until it is near the best after each shift

    def over_off(self, policy: str) -> float:
        return self.policies[policy].goodput / self.references.off

    def over_best_static(self, policy: str) -> float:
        return self.policies[policy].goodput / self.references.best_static

    def to_json(self) -> dict[str, Any]:
        """Plain data; ratios are to plain decoding unless their name says otherwise."""
        known = self.references
        return {
            "machine": self.machine.name,
            "simulated": self.machine.simulated,
            "work": self.scenario.work,
            "batch": self.scenario.batch,
            "mixed": self.scenario.mixed,
            "off_tokens_per_second": known.off,
            "tiers": {str(tier): goodput / known.off for tier, goodput in known.tiers.items()},
            "best_static": {"tier": str(known.best), "ratio": known.best_static / known.off},
            "per_request_best": _over(known.per_request_best, known.off),
            "clairvoyant": _over(known.clairvoyant, known.off),
            "per_phase_best": _over(known.per_phase_best, known.off),
            "policies": {name: self._policy(name, tally) for name, tally in self.policies.items()},
        }

    def _policy(self, name: str, tally: ReplayStats) -> dict[str, Any]:
        known = self.references
        return {
            "ratio": self.over_off(name),
            "over_best_static": self.over_best_static(name),
            "gap_closed": known.gap_closed(tally.goodput),
            "over_clairvoyant": _over(tally.goodput, known.clairvoyant),
            "over_per_phase_best": _over(tally.goodput, known.per_phase_best),
            "recovery_tokens": list(self.recovery[name]) if name in self.recovery else None,
            "mean_acceptance_length": tally.mean_acceptance_length,
            "duty": tally.duty,
            "switches_per_1000_rounds": tally.switches_per_1000,
            "switches_per_1000_tokens": tally.switches_per_1000_tokens,
            "probing_cost": tally.probing_cost,
            "depths": np.trim_zeros(tally.depths, "b").tolist(),
            "rounds": tally.rounds,
        }


@dataclass(frozen=True)
class Report:
    """All scenarios on all machines."""

    policies: tuple[str, ...]
    cells: tuple[CellResult, ...]

    def check(self) -> None:
        """Refuse what cannot be: depth k earns k + 1 tokens a round at most, wrong drafts one, and no round is cheaper.
        Raises ConfigError: costs have it otherwise.
        """
        for cell in self.cells:
            for tier, goodput in cell.references.tiers.items():
                work, batch = cell.scenario.work, cell.scenario.batch
                ratio, most = goodput / cell.references.off, 1 if work == WRONG else tier.depth + 1
                if ratio > _CHANCE * most:
                    raise ConfigError(
                        f"{cell.machine.label}: {tier} would be {ratio:.2f} x plain decoding on {work!r} at batch "
                        f"{batch}, and cannot be more than {most}: its costs are wrong. Measure them anew (adaptspec "
                        "bench record --costs-out FILE), or give others with --cost"
                    )

    def to_json(self) -> dict[str, Any]:
        """Plain data, with a summary by policy."""
        return {
            "policies": {name: self._summary(name) for name in self.policies},
            "cells": [cell.to_json() for cell in self.cells],
        }

    def table(self) -> Table:
        """Goodput relative to plain decoding; in brackets over the best fixed setting."""
        columns = ("machine", "work", "batch", "best static", "clairvoyant", *self.policies)
        table = Table(*columns, title="goodput relative to off (over the best static tier)")
        for cell in self.cells:
            known = cell.references
            best = f"{known.best_static / known.off:.2f} {known.best}"
            oracle = _shown(_over(known.clairvoyant, known.off), ".2f")
            each = (f"{cell.over_off(name):.2f} ({cell.over_best_static(name):.2f})" for name in self.policies)
            table.add_row(cell.machine.label, cell.scenario.work, cell.scenario.batch, best, oracle, *each)
        return table

    def summary(self) -> Table:
        """Means over all cells by policy."""
        table = Table("policy", *_SUMMARY, title="over all cells (means, unless it says worst)")
        for name in self.policies:
            row = self._summary(name)
            table.add_row(name, *(_shown(row[key], how) for key, how, _ in _SUMMARY.values()))
        return table

    def legend(self) -> str:
        """The columns of both tables, a line each."""
        meanings = {
            "machine": "whose seconds are counted"
            + ("; simulated: computed, not measured" if any(cell.machine.simulated for cell in self.cells) else ""),
            "work": "the task of the requests, or how tasks are mixed",
            "batch": "requests that run at once; with dashes, in stages of the stream",
            "best static": "the best fixed setting in hindsight: a drafter and a depth, or off (plain decoding)",
            "clairvoyant": "the best plan of a policy that knows which drafts are right; in a batch, an upper bound",
            ", ".join(self.policies): "tokens per second over plain decoding (over the best static setting)",
            **{name: meaning for name, (_, _, meaning) in _SUMMARY.items()},
        }
        return "\n".join(["columns:", *(f"  {name}: {meaning}" for name, meaning in meanings.items())])

    def _summary(self, name: str) -> dict[str, Any]:
        cells, tallies = self.cells, [cell.policies[name] for cell in self.cells]
        best = [cell.over_best_static(name) for cell in cells]
        phased = [_over(cell.policies[name].goodput, cell.references.per_phase_best) for cell in cells]
        return {
            "mean_ratio": _mean([cell.over_off(name) for cell in cells]),
            "worst_ratio": min(cell.over_off(name) for cell in cells),
            "mean_over_best_static": _mean(best),
            "worst_over_best_static": min(best),
            "gap_closed": _mean([cell.references.gap_closed(cell.policies[name].goodput) for cell in cells]),
            "duty": _mean([tally.duty for tally in tallies]),
            "switches_per_1000_rounds": _mean([tally.switches_per_1000 for tally in tallies]),
            "switches_per_1000_tokens": _mean([tally.switches_per_1000_tokens for tally in tallies]),
            "probing_cost": _mean([tally.probing_cost for tally in tallies]),
            "over_per_phase_best": _mean(phased),
            "recovery_tokens": _mean([tokens for cell in cells for tokens in cell.recovery.get(name, ())]),
        }


def simulate(
    policies: Sequence[PolicySpec],
    scenarios: Sequence[Scenario],
    machines: Sequence[Machine],
    settings: SimulatorSettings = SimulatorSettings(),
    *,
    depths: Sequence[int] = TIERS,
    tick: Callable[[], None] = lambda: None,
) -> Report:
    """Run every policy in every scenario on every machine. `tick` is called after each scenario. References use the
    drafters that the policies use, each at all of `depths`. Raises TapeError: tape and costs have no drafter in common;
    ConfigError, PolicyError: a policy wants a drafter that is not on the tape, or cannot be built.
    """
    results = []
    width = max(spec.spec.max_width for spec in policies)
    for machine in machines:
        for scenario in scenarios:
            stream = scenario.stream
            here = drafters_of(stream.tape, machine, settings)
            wanted = {name for spec in policies if spec.drafts for name in spec.with_drafters(here).drafters}
            tallies = {spec.name: replay(spec, stream, machine, settings) for spec in policies}
            used = [drafter for drafter in here if drafter in wanted] or list(here[:1])
            known = references(stream, machine, used, settings, depths, width=width)
            recovery = {} if known.phase_seconds is None else _recovery(stream, tallies, known.phase_seconds)
            results.append(CellResult(machine, scenario, known, tallies, recovery))
            tick()
    return Report(tuple(spec.name for spec in policies), tuple(results))


def _recovery(stream: Stream, tallies: Mapping[str, ReplayStats], best: FloatArray) -> dict[str, tuple[float, ...]]:
    tokens = (stream.tape.lengths[list(stream.order)] - 1).astype(np.float64)
    found = {}
    for name, tally in tallies.items():
        spent = np.zeros(len(best))
        for request, seconds in tally.request_seconds.items():
            spent[started(request)] = seconds
        found[name] = tuple(recovery_tokens(phases_of(stream), spent, best, tokens))
    return found


def _over(value: float | None, of: float | None) -> float | None:
    return None if value is None or of is None else value / of


def _shown(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)


def _mean(values: Sequence[float | None]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
