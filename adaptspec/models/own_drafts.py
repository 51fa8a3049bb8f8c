"""Drafts that a model makes of itself: with weights in fewer bits, or with its first layers alone."""

from __future__ import annotations

from dataclasses import replace

from adaptspec.errors import ConfigError
from adaptspec.models.config import DecoderConfig
from adaptspec.models.quantized import quantized_weights
from adaptspec.models.weights import DecoderWeights

QUANTIZED, FIRST_LAYERS = "quantized:", "first-layers:"  # how names of such drafts begin
MTP = "mtp"  # the head that predicts more tokens, where a model's own files bring one


def is_own(name: str) -> bool:
    """Whether `--draft` names a part of the target, not a folder."""
    return name == MTP or name.startswith((QUANTIZED, FIRST_LAYERS))


def own_weights(config: DecoderConfig, weights: DecoderWeights, name: str) -> tuple[DecoderConfig, DecoderWeights]:
    """A model's draft of this name; what stays as it is, it shares. ConfigError: there is none."""
    if name.startswith(QUANTIZED):
        return config, quantized_weights(weights, name.removeprefix(QUANTIZED))
    number = name.removeprefix(FIRST_LAYERS)
    count = int(number) if number.isascii() and number.isdecimal() else 0
    if not 0 < count < config.layers:
        raise ConfigError(f"--draft {name}: of the model's {config.layers} layers 1 to {config.layers - 1} can draft")
    return replace(config, windows=config.windows[:count]), replace(weights, layers=weights.layers[:count])
