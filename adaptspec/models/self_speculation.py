"""Self-speculation: a model drafts with its own weights in fewer bits, with its first layers, or with its MTP head."""

from __future__ import annotations

from dataclasses import replace

from adaptspec.errors import ConfigError
from adaptspec.models.config import DecoderConfig
from adaptspec.models.quantized import quantized_weights
from adaptspec.models.weights import DecoderWeights

QUANTIZED, FIRST_LAYERS = "quantized:", "first-layers:"  # prefixes, which a number of bits or of layers follows
MTP = "mtp"  # the head for multi-token prediction in the model's own files


def is_self_speculation(name: str) -> bool:
    """Whether `--draft` names a kind of self-speculation, not a model or a head."""
    return name == MTP or name.startswith((QUANTIZED, FIRST_LAYERS))


def draft_weights(config: DecoderConfig, weights: DecoderWeights, name: str) -> tuple[DecoderConfig, DecoderWeights]:
    """The draft called `name`, such as first-layers:4, of a model. Unchanged weights are shared with the model.

    Raises ConfigError: there is no such number of bits or layers.
    """
    if name.startswith(QUANTIZED):
        return config, quantized_weights(weights, name.removeprefix(QUANTIZED))
    number = name.removeprefix(FIRST_LAYERS)
    count = int(number) if number.isascii() and number.isdecimal() else 0
    if not 0 < count < config.layers:
        raise ConfigError(f"--draft {name}: of the model's {config.layers} layers 1 to {config.layers - 1} can draft")
    return replace(config, windows=config.windows[:count]), replace(weights, layers=weights.layers[:count])
