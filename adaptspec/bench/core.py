"""The one way to compare speeds: contenders answer the same groups of prompts in turn.

Every group is answered by all contenders before the next one, so noise of the machine meets all of them. Speeds are
ratios to the first contender's, with intervals over the groups.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from adaptspec.analysis.intervals import Ratio
from adaptspec.arrays import FloatArray
from adaptspec.tables import Table
from adaptspec.training.corpus import Prompt


@dataclass(frozen=True)
class Group:
    """Prompts that run at once. `number` identifies the group within a run."""

    number: int
    task: str
    prompts: Sequence[Prompt]


def groups_of(workloads: Mapping[str, Sequence[Prompt]], batch: int) -> list[Group]:
    """The prompts of each task, `batch` at once."""
    chunks = [(task, own[i : i + batch]) for task, own in workloads.items() for i in range(0, len(own), batch)]
    return [Group(number, task, prompts) for number, (task, prompts) in enumerate(chunks)]


@dataclass(frozen=True)
class Answers:
    """The answers to a group: seconds from the first request to the last one's end, and the tokens written meanwhile.

    `texts` are in the order of the prompts, as texts or token ids; `first_token` are seconds from each request to its
    first token.
    """

    seconds: float
    texts: Sequence[object]
    tokens: int
    first_token: Sequence[float]
    drafted: int = 0


class Contender(Protocol):
    """A way to answer prompts."""

    name: str

    def run(self, group: Group) -> Answers: ...


@dataclass(frozen=True)
class CompareSettings:
    """Every group is answered `repeats` times, as far as `seconds` go; the first group is always answered."""

    repeats: int = 1
    seconds: float = math.inf


@dataclass(frozen=True)
class Result:
    """What one contender did. `over_first`: speed over the first contender's."""

    name: str
    tokens: int
    seconds: float
    first_token: float  # seconds, median
    drafted: int
    same_text: bool  # as the first contender's
    over_first: Ratio
    tasks: Mapping[str, Ratio]
    by_group: Mapping[int, float]  # seconds per token, by the number of a group

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    def over(self, other: Result, error: float = 0.05) -> Ratio:
        """Speed over another's, on the groups that both answered."""
        both = [number for number in self.by_group if number in other.by_group]
        return Ratio.of_groups(np.array([other.by_group[number] / self.by_group[number] for number in both]), error)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "tokens_per_second": self.tokens_per_second,
            "first_token_seconds": self.first_token,
            "tokens": self.tokens,
            "drafted": self.drafted,
            "same_text": self.same_text,
            "over_first": self.over_first.to_json(),
            "tasks": {task: ratio.to_json() for task, ratio in self.tasks.items()},
        }


@dataclass(frozen=True)
class Comparison:
    """What all contenders did on the same groups."""

    results: Sequence[Result]

    def table(self, title: str) -> Table:
        return comparison_table(self.to_json(), title)

    def to_json(self) -> list[dict[str, Any]]:
        return [one.to_json() for one in self.results]


def compare(
    contenders: Sequence[Contender],
    groups: Sequence[Group],
    settings: CompareSettings,
    progress: Callable[[], None],
) -> Comparison:
    """Answer all groups by all contenders; `progress` is called after each group.

    Groups come in a random order: a server's traffic is mixed, and a policy may not settle on one task. Contenders take
    turns at being first, since the first one meets a colder machine.
    """
    ends, slowest = time.monotonic() + settings.seconds, 0.0
    found: dict[int, list[list[Answers]]] = {}  # by the number of a group: repeats, contenders
    for repeat in range(settings.repeats):
        for at in np.random.default_rng(repeat).permutation(len(groups)).tolist():
            began = time.monotonic()
            if found and began + slowest > ends:
                break
            turn = (at + repeat) % len(contenders)
            order = [*range(turn, len(contenders)), *range(turn)]
            answers = {i: contenders[i].run(groups[at]) for i in order}
            found.setdefault(groups[at].number, []).append([answers[i] for i in range(len(contenders))])
            progress()
            slowest = max(slowest, time.monotonic() - began)
    tasks = {group.number: group.task for group in groups if group.number in found}
    return Comparison([_result(one.name, i, found, tasks) for i, one in enumerate(contenders)])


def _result(name: str, i: int, found: Mapping[int, Sequence[Sequence[Answers]]], tasks: Mapping[int, str]) -> Result:
    own = [(repeat[0], repeat[i]) for repeats in found.values() for repeat in repeats]
    ratios = np.array([_over_first(repeats, i) for repeats in found.values()])
    of_task = np.array([tasks[number] for number in found])
    return Result(
        name,
        sum(one.tokens for _, one in own),
        sum(one.seconds for _, one in own),
        float(np.median([seconds for _, one in own for seconds in one.first_token])),
        sum(one.drafted for _, one in own),
        all(list(one.texts) == list(first.texts) for first, one in own),
        Ratio.of_groups(ratios),
        {task: Ratio.of_groups(ratios[of_task == task]) for task in sorted(set(tasks.values()))},
        {number: float(np.median(_per_token(repeats, i))) for number, repeats in found.items()},
    )


def _over_first(repeats: Sequence[Sequence[Answers]], i: int) -> float:
    """Of a group: the median of its repeats counts."""
    return float(np.median(_per_token(repeats, 0) / _per_token(repeats, i)))


def _per_token(repeats: Sequence[Sequence[Answers]], i: int) -> FloatArray:
    return np.array([repeat[i].seconds / repeat[i].tokens for repeat in repeats])


def comparison_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """A comparison for people, from its JSON."""
    first, tasks = rows[0]["name"], list(rows[0]["tasks"]) if len(rows[0]["tasks"]) > 1 else []
    table = Table("", "tokens/s", "first token", "same text", f"over {first}", *tasks, title=title)
    for row in rows:
        ratio = "1.00" if row is rows[0] else str(Ratio(**row["over_first"]))
        means = (f"{row['tasks'][task]['mean']:.2f}" for task in tasks)
        same = "yes" if row["same_text"] else "no"
        speeds = f"{row['tokens_per_second']:.1f}", f"{row['first_token_seconds']:.3f} s"
        table.add_row(row["name"], *speeds, same, ratio, *means)
    return table
