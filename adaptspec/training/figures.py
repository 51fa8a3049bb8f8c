"""Acceptance figures of a task from its traces: numbers only, no models.

A round at depth k drafts k tokens on the true prefix; the leading ones that agree are accepted, and one
more token (correction or bonus) comes with them. Tokens beyond the output's end count nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaptspec.training.measure import Trace
from adaptspec.types import BoolArray, FloatArray

DEPTHS = (1, 3, 7)


@dataclass(frozen=True)
class TaskFigures:
    """Acceptance on one task's greedy outputs. None where it cannot be said (no such prompts, no variation).

    `lengths` is by depth (DEPTHS), with the bonus token; `by_position[j]` is the conditional acceptance
    at position j + 1 of depth-7 rounds; the correlations are those of agreement with the draft's
    confidence and entropy.
    """

    task: str
    prompts: int
    output_tokens: float
    agreement: float
    agreement_synthetic: float | None
    agreement_real: float | None
    lengths: dict[int, float]
    by_position: tuple[float | None, ...]
    rejection: float
    coupled: float
    greedy_draft: float
    confidence_correlation: float | None
    entropy_correlation: float | None


@dataclass(frozen=True)
class LabelledTrace:
    """A trace and where its prompt comes from."""

    trace: Trace
    synthetic: bool


def task_figures(task: str, items: Sequence[LabelledTrace]) -> TaskFigures:
    """The figures of at least one non-empty trace. Means are over output positions."""
    traces = [item.trace for item in items]
    agreed = np.concatenate([trace.agreed for trace in traces])
    synthetic = np.concatenate([np.full(len(item.trace.agreed), item.synthetic) for item in items])
    return TaskFigures(
        task=task,
        prompts=len(items),
        output_tokens=len(agreed) / len(items),
        agreement=float(agreed.mean()),
        agreement_synthetic=_mean(agreed[synthetic]),
        agreement_real=_mean(agreed[~synthetic]),
        lengths={depth: acceptance_length([t.agreed for t in traces], depth) for depth in DEPTHS},
        by_position=conditional_acceptance([t.agreed for t in traces], DEPTHS[-1]),
        rejection=float(np.concatenate([t.rejection for t in traces]).mean()),
        coupled=float(np.concatenate([t.coupled for t in traces]).mean()),
        greedy_draft=float(np.concatenate([t.greedy_draft for t in traces]).mean()),
        confidence_correlation=_correlation(np.concatenate([t.confidence for t in traces]), agreed),
        entropy_correlation=_correlation(np.concatenate([t.entropy for t in traces]), agreed),
    )


def acceptance_length(outputs: Sequence[BoolArray], depth: int) -> float:
    """Emitted tokens per round at a fixed depth: 1 + accepted, cut at the output's end."""
    rounds = sum(len(_rounds(agreed, depth)) for agreed in outputs)
    return sum(len(agreed) for agreed in outputs) / rounds


def conditional_acceptance(outputs: Sequence[BoolArray], depth: int) -> tuple[float | None, ...]:
    """accepted_j / reached_j for each position of rounds at a fixed depth; None where none was reached."""
    accepted, reached = np.zeros(depth), np.zeros(depth)
    for agreed in outputs:
        for start, kept in _rounds(agreed, depth):
            drafted = min(depth, len(agreed) - start)
            accepted[:kept] += 1
            reached[: min(kept + 1, drafted)] += 1
    return tuple(float(a / r) if r else None for a, r in zip(accepted, reached, strict=True))


def _rounds(agreed: BoolArray, depth: int) -> list[tuple[int, int]]:
    """Start and number of accepted tokens of each round over one output."""
    rounds, start = [], 0
    while start < len(agreed):
        ahead = agreed[start : start + depth]
        kept = len(ahead) if ahead.all() else int(np.argmin(ahead))
        rounds.append((start, kept))
        start += kept + 1
    return rounds


def _mean(values: BoolArray) -> float | None:
    return float(values.mean()) if len(values) else None


def _correlation(values: FloatArray, agreed: BoolArray) -> float | None:
    if np.ptp(values) == 0 or agreed.all() or not agreed.any():
        return None
    return float(np.corrcoef(values, agreed)[0, 1])
