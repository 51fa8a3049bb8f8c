"""What heads take of a target: its embedding, its final norm and its LM head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from adaptspec.errors import ModelError
from adaptspec.models.config import DecoderConfig, read_decoder_config
from adaptspec.models.layers import Embedding, Linear, computed_in, head_linear
from adaptspec.models.loading import DTYPES, LoadedModel
from adaptspec.models.transformers_runner import count_layers, last_norm
from adaptspec.models.weights import WeightReader


@dataclass(frozen=True)
class TargetTensors:
    """Those of one target. `config` has its sizes; if transformers runs the target, nothing else in it is true.

    `norm` and `lm_head` are what the target itself computes with. `lm_head_table` returns the matrix [vocab, hidden];
    the loaded one may be laid out for products, or be one rank's part.
    """

    config: DecoderConfig
    embedding: Embedding
    norm: Callable[[torch.Tensor], torch.Tensor]
    lm_head: Linear | None  # None: not as a whole, or not in a form for states of heads
    lm_head_table: Callable[[], torch.Tensor]

    @classmethod
    def of(cls, target: LoadedModel) -> TargetTensors:
        """Raises ModelError: no states of its layers can be had."""
        if target.module is not None:
            return _of_module(target)
        if target.weights is None:
            raise ModelError(
                f"{target.folder} is run by llama.cpp, which returns no states of layers for a head to draft from; use "
                "--runner torch, or a draft model"
            )
        return _of_decoder(target)


def _of_decoder(target: LoadedModel) -> TargetTensors:
    config, weights = target.config, target.weights
    assert config is not None
    assert weights is not None
    name = "model.embed_tokens.weight" if config.tied else "lm_head.weight"
    dtype = DTYPES[target.info.dtype]

    def table() -> torch.Tensor:
        reader = WeightReader(target.folder, config, dtype, target.device, tensors=target.tensors)
        return reader.take(name, (config.vocab_size, config.hidden))

    whole = weights.head if weights.head.width == config.vocab_size else None
    return TargetTensors(config, weights.embedding, weights.norm, whole, table)


def _of_module(target: LoadedModel) -> TargetTensors:
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
    dtype, norm = computed_in(embedding.dtype, target.device), last_norm(module)
    table = head.weight.detach()
    return TargetTensors(
        read_decoder_config(sizes),
        Embedding(embedding, dtype),
        lambda states: norm(states.to(embedding.dtype)).to(dtype),
        head_linear(table, shared=True) if table.dtype == dtype else None,
        lambda: table,
    )
