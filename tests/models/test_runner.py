"""Whoever listens to a model hears its own states of all its tokens, and what becomes of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from adaptspec.models.runner import Heard, Listener, Packed, Runner
from tests.conftest import MakeModel
from tests.models.packing import TOLERANCE, pack, random_tokens
from tests.models.test_branches import through_transformers
from tests.models.test_decoder import VARIANTS, lean, model_path

LAYERS = (0, 1, 2)  # embeddings, between the layers, before the last norm


class Notes(Listener):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.layers: Sequence[int] = LAYERS
        self.listens = True
        self.states: dict[int, torch.Tensor] = {}
        self.calls: list[tuple[Any, ...]] = []

    def heard(self, packed: Packed, starts: Sequence[int], states: torch.Tensor) -> None:
        parts = states.split(packed.counts.tolist())  # type: ignore[no-untyped-call]
        for row, start, part in zip(packed.rows.tolist(), starts, parts, strict=True):
            known = self.states.get(row, part[:0])
            self.states[row] = torch.cat((known[:start], part))

    def truncated(self, row: int, length: int) -> None:
        self.calls.append(("truncated", row, length))

    def kept(self, row: int, base: int, places: Sequence[int]) -> None:
        self.calls.append(("kept", row, base, tuple(places)))

    def freed(self, row: int) -> None:
        self.calls.append(("freed", row))


def listened(runner: Runner) -> Notes:
    assert isinstance(runner, Heard)
    notes = Notes()
    runner.listen(notes)
    return notes


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
    notes, texts = listened(runner), [random_tokens(30, seed=row) for row in range(2)]
    runner.forward(pack((0, texts[0][:20], 0)))
    runner.forward(pack((0, texts[0][20:21], 1), (1, texts[1][:5], 2)))
    runner.forward(pack((1, texts[1][5:30], 3), (0, texts[0][21:30], 1)))
    for row, text in enumerate(texts):
        torch.testing.assert_close(notes.states[row], states_of(place, text), **TOLERANCE)
