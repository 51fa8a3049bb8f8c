"""What a trained drafter is worth: acceptance by task and depth, beside a draft model's, and its model card."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import nn

from adaptspec.arrays import BoolArray
from adaptspec.training.cards import render
from adaptspec.training.corpus import Prompt, spread
from adaptspec.training.head_modules import TrainedHead, heard
from adaptspec.training.measure import MeasuredTarget, acceptance_length, conditional_acceptance
from adaptspec.training.pair_report import ALL, ReportSize, greedy_answers
from adaptspec.training.pair_settings import RunRecord

SIZE = ReportSize(prompts_per_task=16)


@dataclass(frozen=True)
class DepthFigures:
    """Of one task's greedy outputs: `by_depth` is accepted / reached, `length` has the bonus token."""

    task: str
    output_tokens: int
    by_depth: tuple[float | None, ...]
    length: float


@dataclass(frozen=True)
class HeadReport:
    """Figures of what was trained, and of the draft model `beside` it: a task each and, last, all together."""

    parameters: int
    depth: int
    size: ReportSize
    trained: tuple[DepthFigures, ...]
    beside: tuple[DepthFigures, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)


def report_head(
    target: MeasuredTarget,
    student: nn.Module,
    depth: int,
    prompts: Sequence[Prompt],
    console: Console,
    *,
    beside: nn.Module | None = None,
    device: str = "cpu",
) -> HeadReport:
    """Measure a student on the target's greedy outputs. Tasks without a usable prompt are left out."""
    drafters = [student.eval()] if beside is None else [student.eval(), beside]
    found: list[dict[str, list[BoolArray]]] = [{} for _ in drafters]
    for task in track(sorted({prompt.task for prompt in prompts}), "acceptance", console=console):
        chosen = spread([prompt for prompt in prompts if prompt.task == task], SIZE.prompts_per_task)
        for _, ids, output in greedy_answers(target, chosen, SIZE.max_tokens):
            text = torch.tensor([[*ids, *output]], device=device)
            for drafter, by_task in zip(drafters, found, strict=True):
                by_task.setdefault(task, []).append(agreements(drafter, target.model, text, len(ids), depth))
    figures = [_figures(by_task, depth) for by_task in found]
    own = sum(parameter.numel() for parameter in student.parameters())
    return HeadReport(own, depth, SIZE, figures[0], figures[1] if beside is not None else ())


@torch.no_grad()
def agreements(student: nn.Module, target: nn.Module, text: torch.Tensor, first: int, depth: int) -> BoolArray:
    """Whether the drafted tokens are the text's [1, N], from place `first` on: [n] of a model, [n, depth] of a head.

    Of a head, those of a round that begins there: the states behind the token before the newest are known.
    """
    if not isinstance(student, TrainedHead):
        own: torch.Tensor = student(text[:, :-1]).logits[0, first - 1 :].argmax(-1)
        return np.asarray((own == text[0, first:]).cpu())
    states, _ = heard(target, text, student)
    places = torch.arange(first - 2, text.shape[1] - 2, device=text.device)
    ids = torch.nn.functional.pad(text, (0, depth))
    logits = student(states[:, : text.shape[1] - 2], ids, places)
    drafted = torch.stack([each[0].argmax(-1) for each in logits], 1)
    if student.vocabulary is not None:
        drafted = student.vocabulary[drafted]
    wanted = ids[0, first:].unfold(0, depth, 1)[: len(places)]
    return np.asarray((drafted == wanted).cpu())


def head_card(record: RunRecord, report: HeadReport) -> str:
    """The card as Markdown: what it is, recipe, data, figures, limits."""
    return render("head_card", record=record, report=report, kind=record.identity["kind"])


def _figures(by_task: dict[str, list[BoolArray]], depth: int) -> tuple[DepthFigures, ...]:
    pooled = [output for outputs in by_task.values() for output in outputs]
    parts = {**by_task, ALL: pooled} if pooled else {}
    return tuple(
        DepthFigures(
            task, sum(map(len, outputs)), conditional_acceptance(outputs, depth), acceptance_length(outputs, depth)
        )
        for task, outputs in parts.items()
    )
