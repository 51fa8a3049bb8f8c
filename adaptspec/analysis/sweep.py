"""What values of a policy's parameters earn: every combination is replayed on the same groups of prompts.

A candidate differs from the policy as it is only where its interval over the groups does not contain 1. Intervals are
widened for the number of candidates, since the best of many looks better than it is.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adaptspec.analysis.intervals import Ratio
from adaptspec.arrays import FloatArray
from adaptspec.control.language.loader import Find, spec_of_source
from adaptspec.control.language.spec import PolicySpec
from adaptspec.control.language.yaml_source import Source, parse_yaml
from adaptspec.errors import ConfigError, PolicyError, TapeError
from adaptspec.simulation.machine import Machine
from adaptspec.simulation.scenarios import Schedule, Stream, in_turn, stream
from adaptspec.simulation.simulator import SimulatorSettings, replay, static_spec
from adaptspec.simulation.tape import Tape
from adaptspec.tables import Table

MAX_CANDIDATES = 64
_MIN_GROUPS, _MAX_GROUPS = 4, 16
NO_DIFFERENCE = "no difference outside noise"


@dataclass(frozen=True)
class SweptParameter:
    """A parameter of a policy, by its path in the file, and the values to try."""

    path: tuple[str, ...]
    values: tuple[object, ...]

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @classmethod
    def parse(cls, text: str) -> SweptParameter:
        """From "spec.choose.depth=1,2,4"; values are YAML. Raises ConfigError: it is not of this form."""
        name, _, values = text.partition("=")
        path = tuple(name.strip().split("."))
        try:
            data = parse_yaml(f"[{values}]", "--set").data
        except PolicyError as error:
            raise ConfigError(f"--set {text}: {values!r} is no list of YAML values: {error}") from error
        if not all(path) or not isinstance(data, list) or not data:
            raise ConfigError(f"--set {text}: give a path and values, such as spec.choose.depth=1,2,4")
        return cls(path, tuple(data))


@dataclass(frozen=True)
class Candidate:
    """A policy with these values, by the names of its settings."""

    values: Mapping[str, object]
    spec: PolicySpec


def candidates(source: Source, settings: Sequence[SweptParameter], find: Find) -> list[Candidate]:
    """Every combination of the settings' values in the policy file.

    Raises:
        ConfigError: there are more than `MAX_CANDIDATES`, or a parameter is given twice.
        PolicyError: a path leads through a value that is no mapping or that an alias repeats elsewhere, or a policy
            cannot have a value. Says where in the file.
    """
    names = [one.name for one in settings]
    if len(set(names)) < len(names):
        raise ConfigError(f"--set {max(names, key=names.count)} is given twice; list all of its values in one")
    count = int(np.prod([len(one.values) for one in settings]))
    if count > MAX_CANDIDATES:
        raise ConfigError(f"--set makes {count} candidates; give at most {MAX_CANDIDATES} combinations of values")
    found = []
    for values in itertools.product(*(one.values for one in settings)):
        data = source.data
        for setting, value in zip(settings, values, strict=True):
            data = _changed(source, data, setting.path, value)
        chosen = dict(zip(names, values, strict=True))
        try:
            found.append(Candidate(chosen, spec_of_source(replace(source, data=data), find=find)))
        except PolicyError as error:
            raise PolicyError(f"--set {_words(chosen)}: {error}") from error
    return found


def _changed(source: Source, data: object, path: Sequence[object], value: object, done: int = 0) -> object:
    """A copy of the data with the value at the path, whose first `done` steps lead to the data."""
    if done == len(path):
        return value
    here = path[:done]
    if not isinstance(data, dict):
        raise source.error(here, f"is no mapping; write it as one, such as {{key: value}}, to set {path[done]!r} in it")
    key = next((key for key in data if str(key) == str(path[done])), path[done])
    marks = Counter(mark.index for mark in source.values.values())
    mark = source.values.get((*here, key))
    if mark is not None and marks[mark.index] > 1:
        raise source.error((*here, key), "an alias repeats this value elsewhere; write both out, to change one alone")
    return {**data, key: _changed(source, data.get(key, {}), (*here, key, *path[done + 1 :]), value, done + 1)}


@dataclass(frozen=True)
class Swept:
    """A candidate's mean goodput over plain decoding, and over the policy as it is (`values` empty: itself)."""

    values: Mapping[str, object]
    over_plain: float
    over_original: Ratio

    @property
    def verdict(self) -> str:
        if not self.values:
            return "as it is"
        if not self.over_original.differs:
            return NO_DIFFERENCE
        return "faster" if self.over_original.mean > 1.0 else "slower"


@dataclass(frozen=True)
class Sweep:
    """The policy as it is, and then the candidates, measured on so many groups of prompts."""

    policy: str
    rows: Sequence[Swept]
    groups: int

    @property
    def best(self) -> Swept | None:
        """The candidate that earns most of those that are faster than the policy as it is; None: there is none."""
        faster = [row for row in self.rows if row.verdict == "faster"]
        return max(faster, key=lambda row: row.over_original.mean, default=None)

    def table(self) -> Table:
        names = list(self.rows[-1].values)
        title = f"{self.policy}: tokens per second of {self.groups} groups of prompts"
        table = Table(*names, "over plain", "over the policy as it is", "", title=title)
        for row in self.rows:
            values = [str(row.values.get(name, "-")) for name in names]
            ratio = str(row.over_original) if row.values else "1.00"
            table.add_row(*values, f"{row.over_plain:.2f}", ratio, row.verdict)
        return table

    def sentence(self) -> str:
        """What to do."""
        best = self.best
        if best is None:
            return f"Keep {self.policy} as it is: no value makes it faster outside noise."
        return (
            f"Fastest: {_words(best.values)}, {best.over_original} x the tokens per second of {self.policy} as it is."
        )

    def to_json(self) -> dict[str, Any]:
        rows = [
            {
                "values": dict(row.values),
                "over_plain": row.over_plain,
                "over_original": row.over_original.to_json(),
                "verdict": row.verdict,
            }
            for row in self.rows
        ]
        return {"policy": self.policy, "groups": self.groups, "candidates": rows}


def sweep(
    original: PolicySpec,
    tried: Sequence[Candidate],
    tape: Tape,
    schedules: Sequence[Schedule],
    machines: Sequence[Machine],
    *,
    settings: SimulatorSettings = SimulatorSettings(),
    tick: Callable[[], None] = lambda: None,
) -> Sweep:
    """Replay plain decoding, the policy as it is and every candidate; `tick` is called after each of them.

    A group's ratio is the geometric mean over machines and batch sizes. Raises TapeError: too few prompts.
    """
    parts = split(tape, _MAX_GROUPS)
    if len(parts) < _MIN_GROUPS:
        raise TapeError(f"--set needs a tape of at least {_MIN_GROUPS} prompts, or its figures have no interval")
    groups = [[stream(part, schedule, in_turn(part)) for schedule in schedules] for part in parts]

    def goodputs(spec: PolicySpec) -> FloatArray:
        """Logarithms by group [G]."""
        found = _log_goodputs(spec, groups, machines, settings)
        tick()
        return found

    plain, own = goodputs(static_spec(0)), goodputs(original)
    error = 0.05 / len(tried)
    rows = [Swept({}, float(np.exp((own - plain).mean())), Ratio(1.0, 1.0, 1.0))]
    for one in tried:
        found = goodputs(one.spec)
        rows.append(
            Swept(one.values, float(np.exp((found - plain).mean())), Ratio.of_groups(np.exp(found - own), error))
        )
    return Sweep(original.name, rows, len(parts))


def _log_goodputs(
    spec: PolicySpec, groups: Sequence[Sequence[Stream]], machines: Sequence[Machine], settings: SimulatorSettings
) -> FloatArray:
    runs = [[replay(spec, one, costs, settings).goodput for costs in machines for one in group] for group in groups]
    logs: FloatArray = np.log(np.array(runs)).mean(axis=1)
    return logs


def split(tape: Tape, parts: int) -> list[Tape]:
    """The tape's prompts dealt out in turn, task by task; one that was recorded at several temperatures stays whole.

    Parts that would be empty are left out.
    """
    prompts: dict[str, dict[str, list[int]]] = {}
    for request, (name, task) in enumerate(zip(tape.ids, tape.tasks, strict=True)):
        prompts.setdefault(task, {}).setdefault(name.partition("@")[0], []).append(request)
    dealt: list[list[int]] = [[] for _ in range(parts)]
    for number, requests in enumerate(requests for own in prompts.values() for requests in own.values()):
        dealt[number % parts] += requests
    return [tape.take(requests) for requests in dealt if requests]


def _words(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
