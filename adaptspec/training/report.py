"""How good a trained drafter is: acceptance by task and depth on held-out prompts, as report.json and a README."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from rich.console import Console

from adaptspec.arrays import BoolArray
from adaptspec.training.config import KINDS
from adaptspec.training.status import Status
from adaptspec.training.students import Student

ALL = "all"  # the task of figures over all prompts


@dataclass(frozen=True)
class DepthFigures:
    """Figures of greedy answers of one task.

    `by_depth` is the share of drafts accepted at each depth of those that reached it (None: none did); `length` is
    the tokens of a round, with the target's own.
    """

    task: str
    prompts: int
    output_tokens: int
    by_depth: tuple[float | None, ...]
    length: float


@dataclass(frozen=True)
class Report:
    """A finished run: what was trained, on what, and acceptance by task, last over all.

    `settings` are those that cannot change within a run, `sources` the records of each source. `baseline` are the
    figures of another draft model, if one was named.
    """

    kind: str
    target: str
    parameters: int
    depth: int
    minutes: float
    tokens: int
    settings: Mapping[str, object]
    corpus: str
    sources: Mapping[str, int]
    hardware: str
    trained: tuple[DepthFigures, ...]
    baseline: tuple[DepthFigures, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    def to_markdown(self) -> str:
        """A model card."""
        title = KINDS[self.kind].title
        settings = "".join(f"- {name}: {value}\n" for name, value in self.settings.items())
        sources = "".join(
            f"- {name or 'without a source'}: {count:,} records\n" for name, count in self.sources.items()
        )
        baseline = f"\nThe other draft model:\n\n{_table(self.baseline, self.depth)}" if self.baseline else ""
        return f"""# {title[0].upper()}{title[1:]} for {self.target}

Drafts tokens for the target that it was trained for, and for no other ({self.parameters:,} parameters, bfloat16).
Drafts change how fast the target answers, never its text.

## Training

On {self.hardware}, with `adaptspec train {self.kind}`, on the target's answers to the prompts of a corpus, greedy
and sampled ones in turn: {self.minutes:g} minutes, {self.tokens / 1e6:.2f} million tokens. It learns the target's
distribution (KL divergence) with Muon for matrices and AdamW for embeddings and norms; the learning rate rises
linearly, then falls linearly to zero.

{settings}
## Data

The corpus has the fingerprint `{self.corpus}`. Name the licences of its sources before you publish this directory.

{sources}
## Acceptance

Greedy answers to held-out prompts, in rounds of {self.depth} drafted tokens: the share of drafts that is accepted at
each depth, of those that reached it, and the tokens of a round, with the target's own.

{_table(self.trained, self.depth)}{baseline}
## Limits

- It knows the target's answers to prompts like those of the corpus; on others expect less.
- Prompts made by a program share templates with the training text, so their acceptance is flattering.
"""


def _table(figures: Sequence[DepthFigures], depth: int) -> str:
    if not figures:
        return "No prompts were held out.\n"
    lines = [
        f"| task | prompts |{''.join(f' {i} |' for i in range(1, depth + 1))} tokens a round |",
        f"| --- | ---: |{' ---: |' * depth} ---: |",
    ]
    for row in figures:
        shares = "".join(" - |" if share is None else f" {share:.2f} |" for share in row.by_depth)
        task = row.task.replace("|", "\\|")
        lines.append(f"| {task} | {row.prompts} |{shares} {row.length:.2f} |")
    return "\n".join(lines) + "\n"


def measure(
    student: Student, texts: Sequence[tuple[str, Sequence[int], Sequence[int]]], device: torch.device, console: Console
) -> tuple[DepthFigures, ...]:
    """Figures of a student by task, then over all, on greedy answers: (task, prompt, answer) each."""
    student.module.eval()
    found: dict[str, list[BoolArray]] = {}
    with Status(console, "measuring", max(len(texts), 1)) as status:
        for number, (task, prompt, answer) in enumerate(texts, start=1):
            if len(prompt) > 1 and answer:  # a head reads the state of a token before the newest
                ids = torch.tensor([[*prompt, *answer]], device=device)
                found.setdefault(task, []).append(student.agreements(ids, len(prompt)))
            status.update(number)
    pooled = [output for outputs in found.values() for output in outputs]
    parts = {**dict(sorted(found.items())), ALL: pooled} if pooled else {}
    return tuple(
        DepthFigures(
            task,
            len(outputs),
            sum(map(len, outputs)),
            conditional_acceptance(outputs, student.depth),
            acceptance_length(outputs, student.depth),
        )
        for task, outputs in parts.items()
    )


def acceptance_length(outputs: Sequence[BoolArray], depth: int) -> float:
    """Emitted tokens per round at a fixed depth: 1 + accepted, cut at the output's end.

    `outputs` are [n, depth]: whether the drafts of a round that starts at each token are right.
    """
    rounds = sum(len(_rounds(agreed, depth)) for agreed in outputs)
    return sum(len(agreed) for agreed in outputs) / rounds


def conditional_acceptance(outputs: Sequence[BoolArray], depth: int) -> tuple[float | None, ...]:
    """accepted_j / reached_j for each position of rounds at a fixed depth; None where none was reached."""
    accepted, reached = np.zeros(depth), np.zeros(depth)
    for agreed in outputs:
        for start, count in _rounds(agreed, depth):
            accepted[:count] += 1
            reached[: min(count + 1, len(agreed) - start)] += 1
    return tuple(float(a / r) if r else None for a, r in zip(accepted, reached, strict=True))


def _rounds(agreed: BoolArray, depth: int) -> list[tuple[int, int]]:
    """Start and number of accepted tokens of each round over one output."""
    rounds, start = [], 0
    while start < len(agreed):
        ahead = agreed[start, : min(depth, len(agreed) - start)]
        count = len(ahead) if ahead.all() else int(np.argmin(ahead))
        rounds.append((start, count))
        start += count + 1
    return rounds
