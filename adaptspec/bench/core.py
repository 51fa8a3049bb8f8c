"""Contenders side by side: every group of prompts by each in turn, speeds as ratios to the first one's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from adaptspec.arrays import FloatArray
from adaptspec.tables import Table
from adaptspec.training.corpus import Prompt

_DRAWS = 1000  # of the bootstrap


@dataclass(frozen=True)
class Group:
    """Prompts that run at once. `number` identifies the group within a run."""

    number: int
    task: str
    prompts: Sequence[Prompt]


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


def compare(
    contenders: Sequence[Contender], groups: Sequence[Group], repeats: int, tick: Callable[[], None]
) -> list[dict[str, Any]]:
    """Figures of each contender, for JSON; `tick` is called after each group.

    Groups come in a random order: a server's traffic is mixed, and a policy may not settle on one task. Contenders take
    turns at being first, since the first one meets a colder machine.
    """
    seconds, tokens, first_token = (np.zeros((len(contenders), len(groups), repeats)) for _ in range(3))
    drafted, same = np.zeros(len(contenders), dtype=np.int64), [True] * len(contenders)
    for repeat in range(repeats):
        for at in np.random.default_rng(repeat).permutation(len(groups)).tolist():
            turn = (at + repeat) % len(contenders)
            found: dict[int, Answers] = {}
            for i in [*range(turn, len(contenders)), *range(turn)]:
                found[i] = answers = contenders[i].run(groups[at])
                seconds[i, at, repeat], tokens[i, at, repeat] = answers.seconds, answers.tokens
                first_token[i, at, repeat] = np.median(answers.first_token)
                drafted[i] += answers.drafted
            same = [alike and list(found[i].texts) == list(found[0].texts) for i, alike in enumerate(same)]
            tick()
    per_token = seconds / tokens
    tasks = np.array([group.task for group in groups])
    return [
        {
            "name": contender.name,
            "tokens_per_second": float(tokens[i].sum() / seconds[i].sum()),
            "first_token_seconds": float(np.median(first_token[i])),
            "tokens": int(tokens[i].sum()),
            "drafted": int(drafted[i]),
            "same_text": same[i],
            "over_first": _ratio(per_token[0], per_token[i]),
            "tasks": {
                task: _ratio(per_token[0, tasks == task], per_token[i, tasks == task])
                for task in dict.fromkeys(tasks.tolist())
            },
        }
        for i, contender in enumerate(contenders)
    ]


def _ratio(first: FloatArray, own: FloatArray) -> dict[str, float]:
    """How much faster than the first: time per token of groups [G, repeats], with the middle 95 % of a bootstrap.

    Of a group, the median of its repeats counts.
    """
    ratios = np.median(first / own, axis=1)
    drawn = np.random.default_rng(0).integers(0, len(ratios), (_DRAWS, len(ratios)))
    low, high = np.quantile(np.exp(np.log(ratios)[drawn].mean(axis=1)), [0.025, 0.975]).tolist()
    return {"mean": float(np.exp(np.log(ratios).mean())), "low": low, "high": high}


def compared_table(rows: Sequence[dict[str, Any]], title: str) -> Table:
    """What `compare` returned, for people."""
    tasks = list(rows[0]["tasks"]) if len(rows[0]["tasks"]) > 1 else []
    table = Table("", "tokens/s", "first token", "same text", "over first", "95 %", *tasks, title=title)
    for row in rows:
        over = row["over_first"]
        table.add_row(
            row["name"],
            f"{row['tokens_per_second']:.1f}",
            f"{row['first_token_seconds']:.3f} s",
            "yes" if row["same_text"] else "no",
            f"{over['mean']:.3f}",
            f"{over['low']:.3f}-{over['high']:.3f}",
            *(f"{row['tasks'][task]['mean']:.3f}" for task in tasks),
        )
    return table
