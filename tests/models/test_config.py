"""config.json: four families' shapes, and numbers that no model can have."""

from __future__ import annotations

from typing import Any

import pytest

from adaptspec.errors import ModelError
from adaptspec.models.config import check_sizes, is_lean, read_decoder_config

PLAIN: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def test_what_old_configs_leave_out_has_its_usual_value() -> None:
    config = read_decoder_config(PLAIN)
    assert (config.kv_heads, config.head_dim, config.layers) == (4, 16, 4)
    assert not config.tied
    assert config.cache_shape.width == 2 * 4 * 16


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"model_type": "llama", "sliding_window": 8}, (None,) * 4),
        ({"model_type": "mistral", "sliding_window": 8}, (8,) * 4),
        ({"model_type": "mistral", "sliding_window": None}, (None,) * 4),
        ({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": False}, (None,) * 4),
        (
            {"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3},
            (None, None, None, 8),
        ),
        (
            {
                "model_type": "qwen3",
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            (8, None, 8, None),
        ),
    ],
)
def test_sliding_windows_apply_where_the_family_says(changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert read_decoder_config(PLAIN | changes).windows == windows


@pytest.mark.parametrize(
    ("changes", "lean"),
    [
        ({}, True),
        ({"model_type": "gpt2"}, False),
        ({"hidden_act": "gelu"}, False),
        ({"partial_rotary_factor": 0.5}, False),
    ],
)
def test_only_what_it_can_compute_is_lean(changes: dict[str, Any], lean: bool) -> None:
    """Everything else is left to transformers instead of being computed wrongly."""
    assert is_lean(PLAIN | changes) == lean


@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_layers": 10**9},
        {"n_layer": -1},
        {"num_attention_heads": -4},
        {"text_config": {"num_layers": 1e9}},
        {"parts": [{"hidden_size": 10**30}]},
    ],
)
def test_sizes_that_no_model_has_are_refused_wherever_they_stand(config: dict[str, object]) -> None:
    """Before a library begins to build it."""
    with pytest.raises(ModelError, match="no model has more than"):
        check_sizes(config)
    check_sizes({"num_hidden_layers": 61, "vocab_size": 262_144, "sliding_window": None, "text_config": {"n_head": 8}})
