"""Acceptance figures against a round-by-round count written the slow way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.training.figures import (
    DEPTHS,
    LabelledTrace,
    acceptance_length,
    conditional_acceptance,
    task_figures,
)
from adaptspec.training.measure import Trace
from adaptspec.types import BoolArray

OUTPUTS = st.lists(st.lists(st.booleans(), min_size=1, max_size=30), min_size=1, max_size=4)


def _arrays(outputs: list[list[bool]]) -> list[BoolArray]:
    return [np.asarray(output, dtype=np.bool_) for output in outputs]


def _slow_rounds(output: list[bool], depth: int) -> list[list[bool]]:
    """Verdicts seen in each round, one by one."""
    rounds, position = [], 0
    while position < len(output):
        seen: list[bool] = []
        while len(seen) < depth and position < len(output):
            seen.append(output[position])
            position += 1
            if not seen[-1]:
                break
        if seen[-1]:
            position += 1  # the bonus token is the target's own
        rounds.append(seen)
    return rounds


@given(OUTPUTS, st.integers(1, 8))
def test_rounds_are_those_of_plain_counting(outputs: list[list[bool]], depth: int) -> None:
    """Lengths are emitted tokens per round, conditional acceptance is accepted_j / reached_j."""
    rounds = [seen for output in outputs for seen in _slow_rounds(output, depth)]
    assert acceptance_length(_arrays(outputs), depth) == pytest.approx(sum(map(len, outputs)) / len(rounds))
    for j, share in enumerate(conditional_acceptance(_arrays(outputs), depth)):
        verdicts = [seen[j] for seen in rounds if len(seen) > j]
        assert share == (pytest.approx(sum(verdicts) / len(verdicts)) if verdicts else None)


@given(OUTPUTS, st.integers(1, 8))
def test_deeper_never_needs_more_rounds(outputs: list[list[bool]], depth: int) -> None:
    """Acceptance length grows with depth and stays within 1 and depth + 1."""
    length = acceptance_length(_arrays(outputs), depth)
    assert 1.0 <= length <= depth + 1
    assert length <= acceptance_length(_arrays(outputs), depth + 1)


def _trace(agreed: list[bool], confidence: list[float]) -> Trace:
    half, sure = np.full(len(agreed), 0.5), np.asarray(confidence)
    return Trace(np.asarray(agreed), sure, -sure, half, half / 2, half / 5)


def test_a_task_is_pooled_over_positions_and_split_by_source() -> None:
    """Worked by hand: four synthetic positions, two real ones."""
    items = [
        LabelledTrace(_trace([True, True, False, True], [0.9, 0.9, 0.1, 0.9]), synthetic=True),
        LabelledTrace(_trace([False, False], [0.1, 0.1]), synthetic=False),
    ]
    figures = task_figures("chat", items)
    assert figures.agreement == 0.5
    assert (figures.agreement_synthetic, figures.agreement_real) == (0.75, 0.0)
    assert figures.output_tokens == 3.0
    assert (figures.rejection, figures.coupled, figures.greedy_draft) == pytest.approx((0.5, 0.25, 0.1))
    assert figures.confidence_correlation == pytest.approx(1.0)
    assert figures.entropy_correlation == pytest.approx(-1.0)
    assert figures.lengths == {1: 6 / 5, 3: 6 / 4, 7: 6 / 4}
    assert tuple(figures.lengths) == DEPTHS


def test_what_cannot_be_said_is_none() -> None:
    """No real prompts, and no variation to correlate with."""
    figures = task_figures("json", [LabelledTrace(_trace([True, True], [0.5, 0.7]), synthetic=True)])
    assert figures.agreement_real is None
    assert figures.confidence_correlation is None
    assert figures.by_position == (1.0, 1.0, None, None, None, None, None)
