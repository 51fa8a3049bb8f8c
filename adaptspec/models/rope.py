"""Rotary position embeddings: frequencies with their scalings, and the table of rotations.

Rotations are complex numbers: dimension pairs (i, i + head_dim / 2) are stored next to each other, so that one
complex product rotates queries and keys. Weights are permuted once at load to match; attention scores do not
depend on the order of dimensions.
"""

from __future__ import annotations

import math

import torch

from adaptspec.errors import ModelError
from adaptspec.models.config import RopeConfig


def rotations(rope: RopeConfig, head_dim: int, length: int) -> torch.Tensor:
    """Rotations of positions 0 to `length`, complex64 [length, head_dim / 2], scaled by the attention factor."""
    frequencies, factor = inverse_frequencies(rope, head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return torch.polar(torch.full_like(angles, factor), angles)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> tuple[torch.Tensor, float]:
    """Radians per position, float32 [head_dim / 2], and the factor that queries and keys are scaled by."""
    plain = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    try:
        if rope.scaling == "linear":
            return plain / rope.parameters["factor"], 1.0
        if rope.scaling == "llama3":
            return _llama3(plain, rope), 1.0
        if rope.scaling == "yarn":
            return _yarn(plain, rope, head_dim), _yarn_factor(rope)
    except KeyError as missing:
        raise ModelError(f"config.json: RoPE scaling {rope.scaling!r} needs {missing.args[0]!r}") from None
    return plain, 1.0


def _llama3(plain: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Llama 3.1: wavelengths beyond the original context are stretched, short ones kept, blended between."""
    factor = rope.parameters["factor"]
    low, high = rope.parameters["low_freq_factor"], rope.parameters["high_freq_factor"]
    turns = rope.original_context * plain / (2 * math.pi)  # rotations within the original context
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return plain * (keep + (1 - keep) / factor)


def _yarn(plain: torch.Tensor, rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """YaRN (Peng et al. 2023): blend by dimension index, between `beta_fast` and `beta_slow` rotations."""

    def dimension(turns: float) -> float:
        ratio = rope.original_context / (turns * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(rope.theta))

    low = dimension(rope.parameters.get("beta_fast") or 32.0)
    high = dimension(rope.parameters.get("beta_slow") or 1.0)
    if rope.parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    index = torch.arange(head_dim // 2, dtype=torch.float32)
    stretch = ((index - low) / (high - low or 0.001)).clamp(0.0, 1.0)
    return plain * (1 - stretch) + plain / _yarn_stretch(rope) * stretch


def _yarn_factor(rope: RopeConfig) -> float:
    given = rope.parameters.get("attention_factor")
    if given is not None:
        return float(given)
    factor = _yarn_stretch(rope)
    top, bottom = rope.parameters.get("mscale"), rope.parameters.get("mscale_all_dim")
    if top and bottom:
        return _magnitude(factor, top) / _magnitude(factor, bottom)
    return _magnitude(factor, 1.0)


def _yarn_stretch(rope: RopeConfig) -> float:
    return float(rope.parameters.get("factor") or rope.context / rope.original_context)


def _magnitude(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0
