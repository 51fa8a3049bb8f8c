"""Rotary position embeddings: the table of rotations; transformers computes the frequencies of scaled ones.

Rotations are complex numbers: dimension pairs (i, i + head_dim / 2) are stored next to each other, so that one
complex product rotates queries and keys. Weights are permuted once at load to match; attention scores do not
depend on the order of dimensions.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from adaptspec.errors import ModelError
from adaptspec.models.config import RopeConfig


def rotations(rope: RopeConfig, head_dim: int, length: int) -> torch.Tensor:
    """Rotations of positions 0 to `length`, complex64 [length, head_dim / 2], scaled by the attention factor."""
    frequencies, factor = inverse_frequencies(rope, head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return torch.polar(torch.full_like(angles, factor), angles)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> tuple[torch.Tensor, float]:
    """Radians per position, float32 [head_dim / 2], and the factor that queries and keys are scaled by."""
    if rope.scaling == "default":
        return 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)), 1.0
    settings = {**rope.parameters, "rope_type": rope.scaling, "rope_theta": rope.theta, "partial_rotary_factor": 1.0}
    if rope.scaling != "linear":
        settings["original_max_position_embeddings"] = rope.original_context
    if rope.scaling == "yarn":
        settings.setdefault("factor", rope.context / rope.original_context)
    try:
        config = LlamaConfig(head_dim=head_dim, max_position_embeddings=rope.context, rope_parameters=settings)
        frequencies, factor = ROPE_INIT_FUNCTIONS[rope.scaling](config, torch.device("cpu"))
    except KeyError as missing:
        raise ModelError(f"config.json: {missing.args[0]}") from None
    return frequencies, float(factor)
