"""What heads take of a target: its embedding, its last norm and its own head, whoever runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from adaptspec.errors import ModelError
from adaptspec.models.config import DecoderConfig, read_decoder_config
from adaptspec.models.layers import Norm
from adaptspec.models.loading import LoadedModel
from adaptspec.models.transformers_runner import count_layers, last_norm
from adaptspec.models.weights import WeightReader


@dataclass(frozen=True)
class TargetEnds:
    """Of one target. `config` has its sizes; of one that transformers runs nothing else in it is true.

    `embedding` and what `head` gives are [vocab, hidden]; `norm` gives the last norm.
    """

    config: DecoderConfig
    embedding: torch.Tensor
    head: Callable[[], torch.Tensor]
    norm: Callable[[], Norm]

    @classmethod
    def of(cls, target: LoadedModel) -> TargetEnds:
        """Raises ModelError: its layers cannot be told apart."""
        return _of_lean(target) if target.module is None else _of_module(target)


def _of_lean(target: LoadedModel) -> TargetEnds:
    """Read once more where the loaded ones have taken another's weight over."""
    config, weights = target.config, target.weights
    assert config is not None
    assert weights is not None
    embedding = weights.embedding
    there = "model.embed_tokens.weight" if config.tied else "lm_head.weight"

    def reader() -> WeightReader:
        return WeightReader(target.folder, config, embedding.dtype, target.device)

    return TargetEnds(
        config,
        embedding,
        lambda: reader().take(there, (config.vocab_size, config.hidden)),
        lambda: reader().norm("model.norm.weight"),
    )


def _of_module(target: LoadedModel) -> TargetEnds:
    module: Any = target.module
    embedding: torch.Tensor = module.get_input_embeddings().weight.detach()
    head, (vocab_size, hidden) = module.get_output_embeddings(), embedding.shape
    if head is None or getattr(head, "bias", None) is not None:
        raise ModelError(f"{target.folder}: {type(module).__name__} has a head of its own kind; use a draft model")
    sizes = {
        **{"model_type": "llama", "vocab_size": vocab_size, "hidden_size": hidden, "intermediate_size": hidden},
        **{"num_hidden_layers": count_layers(module, hidden), "num_attention_heads": 1, "head_dim": 2},
        "max_position_embeddings": target.info.context,
    }
    return TargetEnds(read_decoder_config(sizes), embedding, head.weight.detach, lambda: last_norm(module))
