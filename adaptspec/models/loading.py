"""Loads a model directory or hub id into a `Runner`: the lean decoder where it fits, transformers elsewhere.

Knows which runner suits which config, and devices and dtypes; knows nothing of how runners compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from adaptspec.errors import ConfigError, ModelError
from adaptspec.models.cache_plan import CacheLimits, plan_cache
from adaptspec.models.config import DecoderConfig, check_sizes, is_lean, read_decoder_config
from adaptspec.models.decoder import Decoder
from adaptspec.models.kv_cache import KVCache
from adaptspec.models.model_files import (
    CONFIG,
    Checkpoint,
    eos_token_ids,
    fingerprint,
    read_json,
    resolve_model,
    weight_files,
)
from adaptspec.models.runner import ModelInfo, Runner
from adaptspec.models.tokenization import check_pair, check_tokenizer, load_tokenizer
from adaptspec.models.transformers_runner import load_through_transformers
from adaptspec.models.weights import DecoderWeights, load_weights

__all__ = ["CacheLimits", "check_pair", "check_tokenizer", "load_model", "load_runner", "load_tokenizer"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NOT_GENERATIVE = ("Classification", "ForQuestionAnswering", "ForMaskedLM")


class LoadedModel(Protocol):
    """A model whose weights are loaded and that has no cache yet: several models can share what memory is left."""

    @property
    def device(self) -> torch.device:
        """Where it lies."""

    @property
    def bytes_per_token(self) -> int:
        """What one cached token takes."""

    def runner(self, limits: CacheLimits) -> Runner:
        """With a cache; ModelError if none of these limits fits."""


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
    """Load a model that shares its device with no other: see `load_model` and, for its cache, `CacheLimits`."""
    limits = CacheLimits(max_rows, cache_tokens, context, block_size=block_size)
    return load_model(path_or_hub_id, device=device, dtype=dtype).runner(limits)


def load_model(path_or_hub_id: str, *, device: str = "auto", dtype: str = "auto") -> LoadedModel:
    """Load a model's weights.

    `device` is cpu, cuda, cuda:N or auto; `dtype` float32, bfloat16, float16 or auto (float32 on CPU, as stored
    on CUDA). Raises ModelError for a directory that cannot be loaded, ConfigError for an unknown device or dtype.
    """
    folder = resolve_model(path_or_hub_id)
    raw = read_json(folder / CONFIG)
    check_sizes(raw)
    _refuse_unsafe(folder, raw)
    place = _device(device)
    number = _dtype(dtype, place, raw)
    if not is_lean(raw):
        return load_through_transformers(folder, raw, number, place)
    config = read_decoder_config(raw)
    with Checkpoint(folder) as checkpoint:
        weights = load_weights(checkpoint, config, number, place)
    return _LeanModel(folder, raw, config, weights, number, place)


@dataclass(frozen=True)
class _LeanModel:
    folder: Path
    raw: Mapping[str, Any]
    config: DecoderConfig
    weights: DecoderWeights
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return self.config.cache_shape.bytes_per_token(self.dtype)

    def runner(self, limits: CacheLimits) -> Decoder:
        config = self.config
        plan = plan_cache(self.folder, self.bytes_per_token, self.device, longest=config.context, limits=limits)
        cache = KVCache(
            config.cache_shape,
            tokens=plan.tokens,
            context=plan.context,
            block_size=plan.block_size,
            dtype=self.dtype,
            device=self.device,
        )
        info = ModelInfo(
            name=self.folder.resolve().name,
            architecture=config.family,
            parameters=self.weights.parameters,
            vocab_size=config.vocab_size,
            context=plan.context,
            fingerprint=fingerprint(self.folder),
            eos_token_ids=eos_token_ids(self.folder, self.raw, config.vocab_size),
            dtype=str(self.dtype).removeprefix("torch."),
        )
        return Decoder(info, config, self.weights, cache)


def _refuse_unsafe(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse what would run code, or what no runner here can compute."""
    if _anywhere(config, "auto_map"):
        raise ModelError(
            f"{folder}: config.json asks to run code from the model directory (auto_map), which is never done; "
            "use a model whose architecture transformers knows itself"
        )
    kernels = [value for value in _anywhere(config, "attn_implementation", "_attn_implementation") if "/" in str(value)]
    if kernels:
        raise ModelError(f"{folder}: config.json asks to fetch attention code from {kernels[0]}, which is never done")
    if (folder / "adapter_config.json").is_file():
        raise ModelError(
            f"{folder} holds an adapter, which names another model to fetch; merge it into its model first"
        )
    if "quantization_config" in config:
        raise ModelError(f"{folder}: quantized checkpoints are not supported; use the unquantized model")
    names = config.get("architectures") or []
    if names and all(str(name).endswith(NOT_GENERATIVE) for name in names):
        raise ModelError(f"{folder}: {', '.join(map(str, names))} does not generate text; use a causal language model")
    if not config.get("model_type"):
        raise ModelError(f"{folder}: config.json has no model_type; is this a Hugging Face model directory?")
    weight_files(folder)


def _anywhere(part: object, *names: str) -> list[object]:
    """Values under these names, however deep: models of several parts have a config for each."""
    if isinstance(part, list):
        return [value for inner in part for value in _anywhere(inner, *names)]
    if not isinstance(part, Mapping):
        return []
    return [part[name] for name in names if name in part] + _anywhere(list(part.values()), *names)


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
