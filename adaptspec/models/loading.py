"""Loads a model directory or hub id into a `Runner`: the lean decoder where it fits, transformers elsewhere."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from adaptspec.errors import ConfigError, ModelError
from adaptspec.models.config import FAMILIES, WHOLE, DecoderConfig, Part, check_sizes, is_lean, read_decoder_config
from adaptspec.models.decoder import Decoder
from adaptspec.models.gguf import fingerprint as gguf_fingerprint
from adaptspec.models.gguf import is_gguf, read_header
from adaptspec.models.gguf_tensors import GgufTensors, torch_config
from adaptspec.models.kv_cache import CacheLimits, CachePlan, KVCache, plan_cache
from adaptspec.models.layers import has_products
from adaptspec.models.llama_cpp import LlamaCppRunner, LlamaModel, file_type
from adaptspec.models.llama_library import load_library
from adaptspec.models.model_files import CONFIG, eos_token_ids, fingerprint, read_json, weight_files
from adaptspec.models.runner import ModelInfo, Runner
from adaptspec.models.self_speculation import draft_weights
from adaptspec.models.source import find_model
from adaptspec.models.transformers_runner import (
    BLOCK,
    TransformersRunner,
    can_branch,
    load_through_transformers,
    longest_context,
)
from adaptspec.models.weights import DecoderWeights, load_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # a type only here, and seconds to import

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
RUNNERS = ("auto", "llama.cpp", "torch")  # auto: llama.cpp for GGUF files, torch for directories
NOT_GENERATIVE = ("Classification", "ForQuestionAnswering", "ForMaskedLM")


MakeDecoder = Callable[[ModelInfo, DecoderConfig, DecoderWeights, CachePlan], Runner]


@dataclass(frozen=True)
class LoadedModel:
    """A model whose weights are loaded and that has no cache yet: several models can share what memory is left.

    `info.context` is the most that the model itself takes. `start` makes its runner, given what the cache leaves of it
    and the cache's sizes; with a `block_size`, they are of that block size whatever is asked for. `config`, `weights`
    and `make` are those of a Llama-like model.
    """

    folder: Path
    info: ModelInfo
    device: torch.device
    bytes_per_token: int
    start: Callable[[ModelInfo, CachePlan], Runner]
    block_size: int | None = None
    config: DecoderConfig | None = None
    weights: DecoderWeights | None = None
    make: MakeDecoder | None = None
    tensors: GgufTensors | None = None  # the source of `weights`, if not a directory
    module: PreTrainedModel | None = None  # of a model that is not Llama-like
    state_width: int = 0  # of a head: values per token of the target's states that it reads

    def runner(self, limits: CacheLimits) -> Runner:
        """With a cache; ModelError if none of these limits fits."""
        limits = replace(limits, block_size=self.block_size or limits.block_size)
        plan = plan_cache(self.folder, self.bytes_per_token, self.device, longest=self.info.context, limits=limits)
        return self.start(replace(self.info, context=plan.context), plan)

    def self_speculation(self, name: str) -> LoadedModel:
        """The draft that this model makes of itself: quantized:int8, quantized:int4 or first-layers:N.

        Raises ConfigError: the model is not Llama-like, or there is no such draft of it.
        """
        if self.config is None or self.weights is None or self.make is None:
            raise ConfigError(f"{self.folder}: only Llama-like models can draft for themselves; use a draft model")
        config, weights = draft_weights(self.config, self.weights, name)
        info = replace(self.info, name=name, fingerprint=f"{self.info.fingerprint}-{name}")
        return _loaded_decoder(self.folder, info, config, weights, self.make)


def plain_decoder(info: ModelInfo, config: DecoderConfig, weights: DecoderWeights, plan: CachePlan) -> Runner:
    """A decoder with a cache of this plan."""
    states = weights.embedding
    return Decoder(info, config, weights, KVCache(config.cache_shape, plan, states.dtype, states.device))


def load_model(
    path_or_hub_id: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    make: MakeDecoder = plain_decoder,
    part: Part = WHOLE,
    gpu_layers: int = 0,
    runner: str = "auto",
) -> LoadedModel:
    """Load a model's weights, or of a Llama-like one this part; `make` makes a runner of those of such a one.

    `device` is cpu, cuda, cuda:N or auto; `dtype` float32, bfloat16, float16 or auto (see `_dtype`). `runner` says what
    runs a GGUF file: llama.cpp, `gpu_layers` of it on the GPU that its library was built for, or torch as any other
    Llama-like model. Raises ModelError for a model that cannot be loaded, ConfigError for a device, dtype or runner
    that is unknown or does not go with it.
    """
    if runner not in RUNNERS:
        raise ConfigError(f"runner is {runner!r}; it must be one of {', '.join(RUNNERS)}")
    folder = find_model(path_or_hub_id, gguf=True)
    if is_gguf(folder):
        if runner != "torch":
            return _load_llama_cpp(folder, device=device, dtype=dtype, gpu_layers=gpu_layers)
        if gpu_layers:
            raise ConfigError("--gpu-layers is for llama.cpp; leave it out with --runner torch, which takes --device")
        return _load_gguf_on_torch(folder, dtype, device_of(device), make=make, part=part)
    raw = read_json(folder / CONFIG)
    check_sizes(raw)
    _refuse_unsafe(folder, raw)
    torch_device = device_of(device)
    torch_dtype = _dtype(dtype, torch_device, raw)
    if is_lean(raw):
        return _load_lean(folder, raw, torch_dtype, torch_device, make=make, part=part)
    return load_other(folder, raw, torch_dtype, torch_device)


def check_parts(path_or_hub_id: str, size: int) -> None:
    """Raise ModelError for a model that cannot be split in so many parts."""
    folder = find_model(path_or_hub_id)
    raw = read_json(folder / CONFIG)
    if not is_lean(raw):
        raise ModelError(f"{folder}: only {', '.join(FAMILIES)} can be split; leave --tensor-parallel-size out")
    read_decoder_config(raw).part(Part(0, size))


def _load_lean(
    folder: Path, raw: Mapping[str, Any], dtype: torch.dtype, device: torch.device, *, make: MakeDecoder, part: Part
) -> LoadedModel:
    config = read_decoder_config(raw)
    weights = load_weights(folder, config, dtype, device, part)
    _give_back_memory()
    info = _info(folder, raw, dtype, (weights.parameters, config.vocab_size, config.context))
    return _loaded_decoder(folder, info, config.part(part), weights, make)


def _load_gguf_on_torch(path: Path, dtype: str, device: torch.device, *, make: MakeDecoder, part: Part) -> LoadedModel:
    """A GGUF file of a Llama-like model, its weights in 16 bits or float32."""
    header = read_header(path)
    # Numbers of few bits lose next to nothing in float16.
    raw = torch_config(header) | {"dtype": "float32" if file_type(header) == "float32" else "float16"}
    check_sizes(raw)
    config, kind = read_decoder_config(raw), _dtype(dtype, device, raw)
    tensors = GgufTensors(header)
    weights = load_weights(path, config, kind, device, part, tensors=tensors)
    _give_back_memory()
    info = ModelInfo(
        name=path.stem,
        architecture=header.architecture,
        parameters=weights.parameters,
        vocab_size=config.vocab_size,
        context=config.context,
        fingerprint=f"{gguf_fingerprint(path)}-torch",
        eos_token_ids=header.end_tokens,
        dtype=str(kind).removeprefix("torch."),
    )
    return replace(_loaded_decoder(path, info, config.part(part), weights, make), tensors=tensors)


def _give_back_memory() -> None:
    """Return to the system what loading has freed (glibc keeps it for later)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _loaded_decoder(
    folder: Path, info: ModelInfo, config: DecoderConfig, weights: DecoderWeights, make: MakeDecoder
) -> LoadedModel:
    """A Llama-like model, or one part of it."""
    embedding = weights.embedding
    return LoadedModel(
        folder,
        info,
        embedding.device,
        config.cache_shape.bytes_per_token(embedding.dtype),
        lambda info, plan: make(info, config, weights, plan),
        config=config,
        weights=weights,
        make=make,
    )


def _load_llama_cpp(path: Path, *, device: str, dtype: str, gpu_layers: int) -> LoadedModel:
    """A GGUF file that llama.cpp runs, whatever its family."""
    if device not in ("auto", "cpu"):
        raise ConfigError(
            f"{path.name} is run by llama.cpp: leave --device out; --gpu-layers N has GPUs compute N layers"
        )
    if dtype != "auto":
        raise ConfigError(f"{path.name} is run in the numbers that it is written in: leave --dtype out")
    header = read_header(path)
    model = LlamaModel(load_library(), header, gpu_layers)
    info = ModelInfo(
        name=path.stem,
        architecture=header.architecture,
        parameters=header.parameters,
        vocab_size=model.vocab_size,
        context=header.number("context_length"),
        fingerprint=gguf_fingerprint(path),
        eos_token_ids=header.end_tokens,
        dtype=file_type(header),
        takes_trees=False,
    )
    each = header.bytes_per_token

    def start(info: ModelInfo, plan: CachePlan) -> Runner:
        return LlamaCppRunner(info, model, plan, bytes_per_token=each, threads=torch.get_num_threads())

    return LoadedModel(path, info, torch.device("cpu"), each, start)


def load_other(folder: Path, raw: Mapping[str, Any], dtype: torch.dtype, device: torch.device) -> LoadedModel:
    """A model that transformers runs, whatever its family."""
    model, bytes_per_token = load_through_transformers(folder, dtype, device)
    config = model.config.get_text_config(decoder=True)
    info = _info(folder, raw, dtype, (model.num_parameters(), config.vocab_size, longest_context(config)))
    return LoadedModel(
        folder,
        replace(info, takes_trees=can_branch(model)),
        device,
        bytes_per_token,
        lambda info, plan: TransformersRunner(info, model, plan.tokens),
        BLOCK,
        module=model,
    )


def _info(folder: Path, raw: Mapping[str, Any], dtype: torch.dtype, sizes: tuple[int, int, int]) -> ModelInfo:
    """`sizes` are the numbers of its parameters, of its tokens, and of those in its context."""
    parameters, vocab_size, context = sizes
    return ModelInfo(
        name=folder.resolve().name,
        architecture=str(raw["model_type"]),
        parameters=parameters,
        vocab_size=vocab_size,
        context=context,
        fingerprint=fingerprint(folder),
        eos_token_ids=eos_token_ids(folder, raw, vocab_size),
        dtype=str(dtype).removeprefix("torch."),
    )


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


def device_of(name: str) -> torch.device:
    """The device called so; ConfigError if there is none."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is {name!r}; it must be auto, cpu, cuda or cuda:N")
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ConfigError(f"device is {name}, but torch finds no CUDA device; use --device cpu or install a CUDA torch")
    # Always by its number: `cuda` is cuda:0, also where another one is at work on the thread.
    device, count = torch.device("cuda", device.index or 0), torch.cuda.device_count()
    if device.index >= count:
        raise ConfigError(f"device is {name}, but the CUDA devices here are {count}, from cuda:0 on; name one of them")
    return device


def _dtype(name: str, device: torch.device, config: Mapping[str, Any]) -> torch.dtype:
    """What weights are held in.

    With "auto" they stay as they are stored, where the device has fast products of such numbers. On a CPU numbers of 16
    bits are held in float16 and computed in float32, which loses next to nothing (see `HalfLinear`); CPUs with matrix
    units for bfloat16 (AMX) read prompts several times as fast in that.
    """
    if name not in ("auto", *DTYPES):
        raise ConfigError(f"dtype is {name!r}; it must be auto, {', '.join(DTYPES)}")
    lean = is_lean(config)
    if name != "auto":
        if device.type == "cpu" and lean and not has_products(DTYPES[name]):
            others = " or ".join(other for other, kind in DTYPES.items() if has_products(kind))
            raise ConfigError(f"this CPU has no fast products of {name} numbers; use --dtype {others}")
        return DTYPES[name]
    stored = DTYPES.get(str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch."), torch.float32)
    if device.type != "cpu":
        return stored
    if not lean or stored == torch.float32:
        return torch.float32
    if stored == torch.bfloat16 and torch.cpu._is_amx_tile_supported():
        return torch.bfloat16
    return torch.float16 if has_products(torch.float16) else torch.float32
