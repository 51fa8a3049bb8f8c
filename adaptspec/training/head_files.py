"""Makes heads for a target, and writes their checkpoints: the layout of `speculators`, and of vLLM for Medusa."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from transformers import LlamaConfig, PretrainedConfig, Qwen3Config

from adaptspec.errors import ConfigError
from adaptspec.files import write_file
from adaptspec.models.config import FAMILIES, is_lean
from adaptspec.models.model_files import CONFIG, WEIGHTS
from adaptspec.quantity import quantity
from adaptspec.training.heads import DFlash, Eagle, FrozenParts, Medusa, TrainedHead

# Settings of the target that the layers of a head share.
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_parameters", "num_hidden_layers"),
)


def make_head(kind: str, target: Any, depth: int, layers: int) -> TrainedHead:
    """A fresh head ("eagle", "dflash" or "medusa") for a model of transformers.

    Raises ConfigError: such a head cannot be made for the target.
    """
    if not is_lean(target.config.to_dict()):
        raise ConfigError(f"heads are for {', '.join(FAMILIES)}, not {target.config.model_type}; use `train draft`")
    config, frozen = _layer_config(target.config, layers), FrozenParts.of(target)
    torch.manual_seed(0)
    if kind == "medusa":
        return Medusa(config, frozen, depth, (target.config.num_hidden_layers,))
    states = _states(target.config.num_hidden_layers)
    if kind == "eagle":
        return Eagle(config, frozen, depth, states)
    return DFlash(config, frozen, depth, states, _mask_token(target.config))


def save_head(head: TrainedHead, target: Any, folder: Path, name: str) -> None:
    """Write config.json and model.safetensors (bfloat16); `name` is the target's."""
    tensors = {key: value.bfloat16().contiguous().cpu() for key, value in head.state_dict().items()}
    whole, vocabulary = target.config.vocab_size, head.vocabulary
    if vocabulary is not None:
        tokens = vocabulary.cpu()
        known = torch.zeros(whole, dtype=torch.bool)
        known[tokens] = True
        tensors |= {"d2t": tokens - torch.arange(len(tokens)), "t2d": known}
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / WEIGHTS, save(tensors, metadata={"format": "pt"}))
    config = _medusa_config(head, target.config) if isinstance(head, Medusa) else _config(head, target.config, name)
    write_file(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())


def _config(head: TrainedHead, target: PretrainedConfig, name: str) -> dict[str, object]:
    eagle = isinstance(head, Eagle)
    layers: Any = head.layers
    layer = _layer_config(target, len(layers))
    fields = layer.to_dict()
    if not eagle:
        fields = Qwen3Config(**{key: fields[key] for key in _SIZES}, use_sliding_window=False).to_dict()
    method = {"proposal_type": "greedy", "speculative_tokens": head.depth, "verifier_accept_k": 1}
    kind_fields: dict[str, object] = {
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "embed_requires_grad": False,
        "eagle_aux_hidden_state_layer_ids": list(head.states),
    }
    if isinstance(head, DFlash):
        kind_fields = {
            "aux_hidden_state_layer_ids": list(head.states),
            "block_size": head.depth + 1,
            "mask_token_id": head.mask_token,
            "sample_from_anchor": False,
            # No layer slides; but where this is false vLLM 0.32 hides the rest of the block in all layers.
            "sliding_window_non_causal": True,
        }
    kind = "eagle3" if eagle else "dflash"
    return {
        "architectures": ["Eagle3DraftModel" if eagle else "DFlashDraftModel"],
        "speculators_model_type": kind,
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [method | {"accept_tolerance": 0.0}],
            "verifier": {"name_or_path": name, "architectures": list(target.architectures or ())},
        },
        "transformer_layer_config": fields,
        "draft_vocab_size": target.vocab_size if head.vocabulary is None else len(head.vocabulary),
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        **kind_fields,
    }


def _medusa_config(head: Medusa, target: PretrainedConfig) -> dict[str, object]:
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
        "truncated_vocab_size": target.vocab_size,
        "num_heads": head.depth,
        "num_hidden_layers": len(head.blocks[0].layers),  # type: ignore[arg-type]
        "medusa_fc_bias": False,
        "original_lm_head": False,
        "dtype": "bfloat16",
    }


def _layer_config(target: PretrainedConfig, layers: int) -> LlamaConfig:
    """The settings of the target's layers, for `layers` of a head."""
    fields = {name: getattr(target, name) for name in _SIZES if getattr(target, name, None) is not None}
    return LlamaConfig(**(fields | {"num_hidden_layers": layers, "tie_word_embeddings": False}))


def _states(layers: int) -> tuple[int, ...]:
    """The layers whose states are read: early, middle and late ones as in EAGLE-3, spread for targets of few layers."""
    usual = (2, layers // 2, layers - 3)
    found = usual if 2 < layers // 2 < layers - 3 else (layers // 3, 2 * layers // 3, layers - 1)
    if len(set(found)) < len(found):
        has = quantity(layers, "layer")
        raise ConfigError(f"the target has {has}; a head that reads three of its states needs at least four")
    return found


def _mask_token(target: PretrainedConfig) -> int:
    """A token that does not occur in texts."""
    token = target.pad_token_id
    return int(target.vocab_size - 1 if token is None or not 0 <= token < target.vocab_size else token)
