"""Loads a model directory or hub id into a `Runner`: the lean decoder where it fits, transformers elsewhere.

Knows which runner suits which config, and devices and dtypes; knows nothing of how runners compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from adaptspec.errors import ConfigError, ModelError
from adaptspec.models.checkpoint import CONFIG, Checkpoint, eos_token_ids, fingerprint, read_json, weight_files
from adaptspec.models.config import is_lean, read_decoder_config
from adaptspec.models.decoder import Decoder
from adaptspec.models.hub import resolve_model
from adaptspec.models.kv_cache import KVCache
from adaptspec.models.memory import plan_cache
from adaptspec.models.runner import ModelInfo, Runner
from adaptspec.models.tokenizer import check_pair, check_tokenizer, load_tokenizer
from adaptspec.models.transformers_runner import load_transformers_runner
from adaptspec.models.weights import load_weights

__all__ = ["check_pair", "check_tokenizer", "load_runner", "load_tokenizer", "resolve_model"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NOT_GENERATIVE = ("Classification", "ForQuestionAnswering", "ForMaskedLM")


def load_runner(
    path_or_hub_id: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    max_rows: int,
    cache_tokens: int | None = None,
    context: int | None = None,
    block_size: int | None = None,
) -> Runner:
    """Load a model for up to `max_rows` rows at a time.

    `device` is cpu, cuda, cuda:N or auto; `dtype` float32, bfloat16, float16 or auto (float32 on CPU, as stored
    on CUDA). `cache_tokens` bounds the cached tokens of all rows together, `context` those of one row;
    None for as much as fits. `block_size` is the cache's allocation unit, None for the device's best.

    Raises ModelError for a directory that cannot be loaded, ConfigError for an unknown device or dtype.
    """
    folder = resolve_model(path_or_hub_id)
    config = read_json(folder / CONFIG)
    _refuse_unsafe(folder, config)
    place = _device(device)
    number = _dtype(dtype, place, config)
    limits = {"max_rows": max_rows, "cache_tokens": cache_tokens, "context": context, "block_size": block_size}
    if is_lean(config):
        return _load_decoder(folder, config, number, place, limits)
    return load_transformers_runner(folder, config, number, place, limits)


def _load_decoder(
    folder: Path, raw: Mapping[str, Any], dtype: torch.dtype, device: torch.device, limits: Mapping[str, int | None]
) -> Decoder:
    config = read_decoder_config(raw)
    with Checkpoint(folder) as checkpoint:
        weights = load_weights(checkpoint, config, dtype, device)
    plan = plan_cache(config.cache_shape, dtype, device, longest=config.context, **limits)  # type: ignore[arg-type]
    cache = KVCache(
        config.cache_shape,
        tokens=plan.tokens,
        context=plan.context,
        block_size=plan.block_size,
        dtype=dtype,
        device=device,
    )
    info = ModelInfo(
        name=folder.resolve().name,
        architecture=config.family,
        parameters=weights.parameters,
        vocab_size=config.vocab_size,
        context=plan.context,
        fingerprint=fingerprint(folder),
        eos_token_ids=eos_token_ids(folder, raw),
    )
    return Decoder(info, config, weights, cache)


def _refuse_unsafe(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse what would run code, or what no runner here can compute."""
    if "auto_map" in config:
        raise ModelError(
            f"{folder}: config.json asks to run code from the model directory (auto_map), which is never done; "
            "use a model whose architecture transformers knows itself"
        )
    if "quantization_config" in config:
        raise ModelError(f"{folder}: quantized checkpoints are not supported; use the unquantized model")
    names = config.get("architectures") or []
    if names and all(str(name).endswith(NOT_GENERATIVE) for name in names):
        raise ModelError(f"{folder}: {', '.join(map(str, names))} does not generate text; use a causal language model")
    if not config.get("model_type"):
        raise ModelError(f"{folder}: config.json has no model_type; is this a Hugging Face model directory?")
    weight_files(folder)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is {name!r}; it must be auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but torch finds no CUDA device; use --device cpu or install a CUDA torch")
    return device


def _dtype(name: str, device: torch.device, config: Mapping[str, Any]) -> torch.dtype:
    if name == "auto":
        stored = str(config.get("dtype") or config.get("torch_dtype") or "float32")
        return torch.float32 if device.type == "cpu" else DTYPES.get(stored.removeprefix("torch."), torch.float32)
    if name not in DTYPES:
        raise ConfigError(f"dtype is {name!r}; it must be auto, {', '.join(DTYPES)}")
    return DTYPES[name]
