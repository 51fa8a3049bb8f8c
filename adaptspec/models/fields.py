"""Typed fields of a config.json: numbers that are missing or of the wrong kind end in a ModelError that names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adaptspec.errors import ModelError

MOST = 2**31 - 1
MOST_NUMBER = 1e18
MOST_LAYERS = 2**14
# What other libraries build models of, which would go on for hours or fill the memory with what no model has.
_LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "num_experts", "num_local_experts")
_SIZES = (
    *("vocab_size", "hidden_size", "d_model", "n_embd", "intermediate_size", "head_dim"),
    *("num_attention_heads", "num_key_value_heads", "num_heads", "n_head"),
    *("max_position_embeddings", "n_positions", "sliding_window"),
)


def count(config: Mapping[str, Any], name: str, default: int | None = None, *, most: int = MOST) -> int:
    """A positive integer of at most `most`; `default` if the field is missing or null."""
    value = default if config.get(name) is None else config[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ModelError(f"config.json: {name} is {shown(value)}; it must be a positive integer of at most {most}")
    return value


def number(config: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A positive number; `default` if the field is missing or null."""
    value = default if config.get(name) is None else config[name]
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= MOST_NUMBER:
        raise ModelError(
            f"config.json: {name} is {shown(value)}; it must be a positive number of at most {MOST_NUMBER:g}"
        )
    return float(value)


def check_sizes(config: object) -> None:
    """Raise ModelError for sizes that no model can have, in a config.json and the configs within it."""
    if isinstance(config, list):
        for part in config:
            check_sizes(part)
    if not isinstance(config, Mapping):
        return
    for name, value in config.items():
        most = MOST_LAYERS if name in _LAYERS else MOST if name in _SIZES else None
        if most is not None and isinstance(value, (int, float)) and not 0 <= value <= most:
            raise ModelError(f"config.json: {name} is {shown(value)}; no model has more than {most}, or less than 0")
        check_sizes(value)


def shown(value: object) -> str:
    """A value as it may stand in a message: a file may hold anything."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
