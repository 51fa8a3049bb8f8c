"""The measuring pass: greedy outputs and per-position figures of a tiny pair."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from adaptspec.arrays import BoolArray
from adaptspec.training.measure import (
    MeasuredPair,
    acceptance_length,
    conditional_acceptance,
)

PROMPTS = ([5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [20])


@pytest.mark.parametrize("padding", ["<|pad|>", None])
def test_batched_outputs_are_the_greedy_ones(target_path: Path, draft_path: Path, padding: str | None) -> None:
    """Padding on the left must not change what a prompt gets, whichever token it is; order is kept."""
    pair = MeasuredPair(target_path, draft_path)
    pair._tokenizer.pad_token = padding
    model = AutoModelForCausalLM.from_pretrained(target_path, dtype=torch.float32)
    for prompt, output in zip(PROMPTS, pair.generate(PROMPTS, 12, batch=2), strict=True):
        tokens = list(prompt)
        while len(tokens) < len(prompt) + 12 and tokens[-1] != 1:
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        assert output == tokens[len(prompt) :]


def test_a_trace_is_that_of_stepping_through_the_output(target_path: Path, draft_path: Path) -> None:
    """Teacher forcing sees at position t what the draft would see after t true tokens."""
    pair = MeasuredPair(target_path, draft_path)
    output = pair.generate([PROMPTS[1]], 10)[0]
    trace = pair.trace(PROMPTS[1], output)
    target = AutoModelForCausalLM.from_pretrained(target_path, dtype=torch.float32)
    draft = AutoModelForCausalLM.from_pretrained(draft_path, dtype=torch.float32)
    for t, token in enumerate(output):
        prefix = torch.tensor([[*PROMPTS[1], *output[:t]]])
        with torch.no_grad():
            x, y = target(prefix).logits[0, -1], draft(prefix).logits[0, -1]
        p, q, plain = (x / 0.8).softmax(-1), (y / 0.8).softmax(-1), y.softmax(-1)
        assert trace.agreed[t] == (int(y.argmax()) == token)
        assert trace.confidence[t] == pytest.approx(float(plain.max()), rel=1e-3)
        assert trace.entropy[t] == pytest.approx(float(-(plain * plain.log()).sum()), rel=1e-3)
        assert trace.rejection[t] == pytest.approx(float(torch.minimum(p, q).sum()), rel=1e-3)
        assert trace.greedy_draft[t] == pytest.approx(float(p[y.argmax()]), rel=1e-3)


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
