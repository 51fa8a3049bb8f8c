"""Frequencies of every scaling equal transformers', from either style of config.json."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from adaptspec.errors import ModelError
from adaptspec.models.config import read_rope
from adaptspec.models.rope import inverse_frequencies, rotations

BASE: dict[str, Any] = {"max_position_embeddings": 2048, "rope_theta": 50_000.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS: list[dict[str, Any]] = [
    {"type": "linear", "factor": 3.0},
    LLAMA3 | {"original_max_position_embeddings": 256},
    LLAMA3,
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": 2, "truncate": False},
    {"rope_type": "yarn", "factor": 8.0, "attention_factor": 0.7, "original_max_position_embeddings": 256},
    {"rope_type": "yarn", "factor": 8.0, "mscale": 0.8, "mscale_all_dim": 1.2, "original_max_position_embeddings": 256},
    {"rope_type": "yarn", "factor": 1.0},
]


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("style", ["rope_scaling", "rope_parameters"])
def test_frequencies_equal_transformers(scaling: dict[str, Any], style: str) -> None:
    raw = BASE | {style: scaling}
    if style == "rope_parameters":
        raw = {"max_position_embeddings": 2048, style: scaling | {"rope_theta": 50_000.0}}
    theirs = LlamaConfig(hidden_size=128, num_attention_heads=4, **raw)
    kind = scaling.get("rope_type") or scaling["type"]
    expected, factor = ROPE_INIT_FUNCTIONS[kind](theirs, torch.device("cpu"))
    got, own_factor = inverse_frequencies(read_rope(raw), 32)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=0.0)
    assert own_factor == pytest.approx(factor)


def test_plain_rope_needs_nothing_but_theta() -> None:
    got, factor = inverse_frequencies(read_rope(BASE), 8)
    assert got.tolist() == pytest.approx([50_000.0 ** -(2 * i / 8) for i in range(4)])
    assert factor == 1.0


def test_rotations_turn_by_position_and_carry_the_factor() -> None:
    table = rotations(read_rope(BASE | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}), 8, 10)
    assert table.shape == (10, 4)
    assert torch.allclose(table.abs(), table[0].real.expand(10, 4))
    assert table[0, 0].real > 1.0


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su"])
def test_scalings_that_cannot_be_exact_are_refused(kind: str) -> None:
    """Dynamic scalings rotate old tokens anew as text grows: a cache of them would be wrong."""
    with pytest.raises(ModelError, match=kind):
        read_rope(BASE | {"rope_scaling": {"rope_type": kind, "factor": 2.0}})


def test_a_scaling_without_its_numbers_says_which() -> None:
    with pytest.raises(ModelError, match="low_freq_factor"):
        inverse_frequencies(read_rope(BASE | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}), 8)
