"""Runners return the hidden states of captured layers, of all tokens of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from adaptspec.models.runner import CapturingRunner
from tests.conftest import MakeModel
from tests.models.packing import TOLERANCE, pack, random_tokens
from tests.models.test_branches import through_transformers
from tests.models.test_decoder import VARIANTS, lean, model_path

LAYERS = (0, 1, 2)  # embeddings, between the layers, before the last norm


def states_of(place: Path, tokens: Sequence[int], layers: Sequence[int] = LAYERS) -> torch.Tensor:
    """As transformers computes them [n, layers x hidden], the last before the norm."""
    model = AutoModelForCausalLM.from_pretrained(place)
    kept: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda _, args: kept.append(args[0]))
    with torch.inference_mode():
        found = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    return torch.cat([(kept[0] if i == len(found) - 1 else found[i])[0] for i in layers], 1)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("through", ["lean", "transformers"])
def test_states_are_the_models_own(make_model: MakeModel, variant: str, through: str) -> None:
    """Of a long prompt, of single tokens, of several rows at once, and whether or not anybody wants their logits."""
    place = model_path(make_model, variant)
    runner = lean(place) if through == "lean" else through_transformers(place)
    assert isinstance(runner, CapturingRunner)
    runner.capture_states(LAYERS)
    texts = [random_tokens(30, seed=row) for row in range(2)]
    found: dict[int, list[torch.Tensor]] = {0: [], 1: []}
    for parts in (
        [(0, texts[0][:20], 0)],
        [(0, texts[0][20:21], 1), (1, texts[1][:5], 2)],
        [(1, texts[1][5:30], 3), (0, texts[0][21:30], 1)],
    ):
        states = runner.forward(pack(*parts)).hidden_states
        assert states is not None
        for (row, _, _), part in zip(parts, states.split([len(part[1]) for part in parts]), strict=True):
            found[row].append(part)
    for row, text in enumerate(texts):
        torch.testing.assert_close(torch.cat(found[row]), states_of(place, text), **TOLERANCE)


def test_states_are_captured_for_heads_alone(make_model: MakeModel) -> None:
    """Without one, passes return none, and the last layer computes wanted tokens only."""
    runner = lean(model_path(make_model, "llama"))
    assert runner.reserve(0, 5)
    assert runner.forward(pack((0, random_tokens(5), 1))).hidden_states is None
