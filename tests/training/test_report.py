"""Figures of rounds are those of counting verdict by verdict."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.arrays import BoolArray
from adaptspec.training.report import acceptance_length, conditional_acceptance

OUTPUTS = st.lists(st.lists(st.booleans(), min_size=1, max_size=30), min_size=1, max_size=4)


def chains(output: list[bool], depth: int) -> BoolArray:
    """[n, depth] of a drafter that is right at a token or not, whichever round drafts it."""
    padded = [*output, *([False] * depth)]
    return np.array([padded[i : i + depth] for i in range(len(output))], dtype=np.bool_)


def _slow_rounds(output: list[bool], depth: int) -> list[list[bool]]:
    """Verdicts of each round, one by one."""
    rounds, position = [], 0
    while position < len(output):
        seen: list[bool] = []
        while len(seen) < depth and position < len(output):
            seen.append(output[position])
            position += 1
            if not seen[-1]:
                break
        if seen[-1]:
            position += 1  # the bonus token is the target's
        rounds.append(seen)
    return rounds


@given(OUTPUTS, st.integers(1, 8))
def test_rounds_are_those_of_plain_counting(outputs: list[list[bool]], depth: int) -> None:
    """Lengths are emitted tokens per round, conditional acceptance is accepted_j / reached_j."""
    rounds = [seen for output in outputs for seen in _slow_rounds(output, depth)]
    found = [chains(output, depth) for output in outputs]
    assert acceptance_length(found, depth) == pytest.approx(sum(map(len, outputs)) / len(rounds))
    for j, share in enumerate(conditional_acceptance(found, depth)):
        verdicts = [seen[j] for seen in rounds if len(seen) > j]
        assert share == (pytest.approx(sum(verdicts) / len(verdicts)) if verdicts else None)
