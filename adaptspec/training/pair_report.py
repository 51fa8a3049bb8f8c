"""What ends the recipe: the report (losses, acceptance, samples) and the model card with its tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import track

from adaptspec.training.cards import render
from adaptspec.training.corpus import BUILT_IN, Prompt, Record, read_prompts, spread
from adaptspec.training.measure import (
    DEPTHS,
    TEMPERATURE,
    AcceptanceFigures,
    MeasuredPair,
    MeasuredTarget,
    Trace,
    task_figures,
)
from adaptspec.training.pair_settings import RunRecord

ALL = "all"  # the task of figures of all positions pooled


@dataclass(frozen=True)
class ReportSize:
    """How much is measured."""

    prompts_per_task: int = 30
    max_tokens: int = 160
    records_per_task: int = 40  # for the loss, synthetic and real each
    sample_tokens: int = 96


@dataclass(frozen=True)
class LossFigures:
    """Mean loss (nats per token) on a task's held-out records."""

    task: str
    synthetic: bool
    tokens: int
    target: float
    draft: float


@dataclass(frozen=True)
class Sample:
    """What the target says, greedily."""

    task: str
    prompt: str
    text: str


@dataclass(frozen=True)
class PairReport:
    """All figures of a pair. `acceptance` has one entry per task and, last, one of all positions pooled."""

    target_parameters: int
    draft_parameters: int
    size: ReportSize
    losses: tuple[LossFigures, ...]
    acceptance: tuple[AcceptanceFigures, ...]
    samples: tuple[Sample, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)

    def to_markdown(self) -> str:
        return render("pair_report", report=self, temperature=TEMPERATURE, depths=DEPTHS)


def report_pair(
    target: Path,
    draft: Path,
    held_out: Sequence[Record],
    prompts: Sequence[Prompt],
    console: Console,
    *,
    size: ReportSize = ReportSize(),
    device: str = "cpu",
) -> PairReport:
    """Measure the pair in the two model directories. Tasks without a usable prompt are left out."""
    pair = MeasuredPair(target, draft, device)
    tasks = sorted({prompt.task for prompt in prompts})
    traces: dict[str, list[Trace]] = {}
    for task in track(tasks, "acceptance", console=console):
        chosen = spread([prompt for prompt in prompts if prompt.task == task], size.prompts_per_task)
        traces[task] = [
            replace(pair.trace(ids, output, seed), synthetic=prompt.synthetic)
            for seed, (prompt, ids, output) in enumerate(greedy_answers(pair, chosen, size.max_tokens))
        ]
    acceptance = [task_figures(task, items) for task, items in traces.items() if items]
    pooled = [item for items in traces.values() for item in items]
    if pooled:
        acceptance.append(task_figures(ALL, pooled))
    losses = _losses(pair, held_out, size.records_per_task, console)
    samples = tuple(
        Sample(prompt.task, prompt.text, pair.decode(output))
        for prompt, _, output in greedy_answers(pair, read_prompts(BUILT_IN), size.sample_tokens)
    )
    return PairReport(*pair.parameters, size, tuple(losses), tuple(acceptance), samples)


def model_card(record: RunRecord, report: PairReport) -> str:
    """The card as Markdown: what it is, recipe, data, figures, limits, how to train it again."""
    return render("pair_card", record=record, report=report, temperature=TEMPERATURE, depths=DEPTHS)


def greedy_answers(
    target: MeasuredTarget, prompts: Sequence[Prompt], max_tokens: int
) -> Iterator[tuple[Prompt, list[int], list[int]]]:
    """Prompts that leave room for an answer, with their token ids and the target's greedy output."""
    encoded = [(prompt, target.encode_chat(prompt.text)) for prompt in prompts]
    usable = [(prompt, ids) for prompt, ids in encoded if len(ids) + max_tokens <= target.context]
    outputs = target.generate([ids for _, ids in usable], max_tokens)
    yield from ((prompt, ids, output) for (prompt, ids), output in zip(usable, outputs, strict=True))


def _losses(pair: MeasuredPair, records: Sequence[Record], count: int, console: Console) -> list[LossFigures]:
    groups: dict[tuple[str, bool], list[Record]] = {}
    for record in records:
        groups.setdefault((record.task, record.synthetic), []).append(record)
    figures = []
    for (task, synthetic), members in track(sorted(groups.items(), key=lambda g: g[0]), "loss", console=console):
        tokens, target, draft = 0, 0.0, 0.0
        for record in spread(members, count):
            ids = pair.encode(record.text)
            one, other = pair.loss(ids)
            tokens, target, draft = tokens + len(ids) - 1, target + one, draft + other
        figures.append(LossFigures(task, synthetic, tokens, target / tokens, draft / tokens))
    return figures
