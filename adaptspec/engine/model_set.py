"""Loads the target and its draft on their devices, and divides the remaining memory among their caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from adaptspec.engine.core import EngineLimits
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.errors import ConfigError
from adaptspec.gpu.device_decoder import SCORES, TILES, DeviceDecoder, beside_cache, device_decoder, padded, tile_of
from adaptspec.gpu.follower import lead
from adaptspec.gpu.ranks import ALONE, Group
from adaptspec.models.config import WHOLE, DecoderConfig
from adaptspec.models.gguf import is_gguf
from adaptspec.models.heads.head_checkpoint import is_head, load_head
from adaptspec.models.heads.head_runner import MAX_BUFFERED, HeadRunner
from adaptspec.models.kv_cache import CacheLimits, CachePlan, bytes_for_cache
from adaptspec.models.loading import (
    DTYPES,
    LoadedModel,
    MakeDecoder,
    check_parts,
    device_of,
    load_model,
    plain_decoder,
)
from adaptspec.models.runner import CapturingRunner, ModelInfo, Runner
from adaptspec.models.self_speculation import MTP
from adaptspec.models.source import find_model
from adaptspec.models.weights import DecoderWeights

Room = Callable[[torch.device], int]  # bytes that all caches on a device may take
READ = 512  # maximum tokens that a head reads in one pass


def load_models(
    config: EngineConfig,
    paths: Sequence[str],
    deepest: Callable[[], int],
    describe: Callable[[ModelInfo], ModelInfo] = lambda info: info,
    make: MakeDecoder | None = None,
    *,
    room: Room | None = None,
) -> list[Runner]:
    """Load the target and, if there is a second path, its draft. All weights are loaded before caches are sized.

    `deepest` returns the maximum draft depth, which is needed where memory is counted. `describe` adds the tokenizer's
    data to the target's info. `make` makes the decoders instead of `decoder`. `room` returns the bytes that caches may
    take; None: the free memory.
    """
    head = len(paths) > 1 and (
        config.self_speculation == MTP or (config.self_speculation is None and is_head(paths[1]))
    )
    group = _ranks(config, paths, head=head)
    try:
        target, *drafts = _load(
            config,
            (paths, head),
            (group, make or decoder),
            deepest=deepest,
            describe=describe,
            room=room or bytes_for_cache,
        )
    except BaseException:
        group.close()
        raise
    if config.exact == "strict" and not isinstance(target, DeviceDecoder):
        raise ConfigError(
            "--exact strict is for Llama-like models on CUDA; leave it out here (on a CPU in float32 no batch has been "
            "seen to change a text, but matrix products of other sizes may round differently)"
        )
    return [target, *drafts]


def _ranks(config: EngineConfig, paths: Sequence[str], *, head: bool) -> Group:
    """Start the ranks that share the target. Raises ConfigError first if the models cannot be shared."""
    if head and config.draft_device:
        raise ConfigError(
            f"--draft {config.draft} is a head, which drafts from the target's states, where these are: leave "
            "--draft-device out, or use a draft model"
        )
    if config.self_speculation and (config.tensor_parallel_size > 1 or config.draft_device):
        raise ConfigError(
            f"--draft {config.draft} needs the whole target on one device: leave --tensor-parallel-size and "
            "--draft-device out, or use a draft model"
        )
    if config.tensor_parallel_size == 1:
        return ALONE
    check_parts(paths[0], config.tensor_parallel_size)
    return lead(config.tensor_parallel_size, device_of(config.device))


def _load(
    config: EngineConfig,
    source: tuple[Sequence[str], bool],
    how: tuple[Group, MakeDecoder],
    *,
    deepest: Callable[[], int],
    describe: Callable[[ModelInfo], ModelInfo],
    room: Room,
) -> list[Runner]:
    (paths, head), (group, make) = source, how
    group.tell("load", paths[0], config.dtype)
    makes: list[MakeDecoder] = [make] * 2 if group is ALONE else [partial(device_decoder, group=group), device_decoder]
    parts, where = (group.part, WHOLE), (config.device, config.draft_device or config.device)
    model_paths = paths[:1] if config.self_speculation or head else paths
    if not any(is_gguf(find_model(path, gguf=True)) for path in model_paths):
        if config.gpu_layers:
            raise ConfigError("--gpu-layers is for GGUF files; a model with safetensors runs on --device whole")
        if config.runner == "llama.cpp":
            raise ConfigError("--runner llama.cpp is for GGUF files; leave it out for a model with safetensors")
    models = [
        load_model(
            path,
            device=device,
            dtype=config.dtype,
            make=make,
            part=part,
            gpu_layers=config.gpu_layers,
            runner=config.runner,
        )
        for path, device, make, part in zip(model_paths, where, makes, parts, strict=False)
    ]
    if head:
        models.append(load_head(paths[1], models[0], pickles=config.allow_pickle))
    elif config.self_speculation:
        models.append(models[0].self_speculation(config.self_speculation))
    info = replace(describe(models[0].info), strict=config.exact == "strict", eager=config.eager)
    models[0] = replace(models[0], info=info)
    answers, tokens = group.answers(), {}
    for device in dict.fromkeys(model.device for model in models):
        # The models on a device share its free memory so that each caches the same number of tokens, on all ranks.
        on_device = [model for model in models if model.device == device]
        left = min([room(device), *(answers if device == models[0].device else ())])
        # Per pass of a round, a draft model reads one or two tokens per row, a head the states of all verified tokens.
        left -= sum(
            _round_bytes(m, config, deepest if m is models[0] or m.state_width else lambda: 1) for m in on_device
        )
        tokens[device] = max(0, left) // sum(model.bytes_per_token for model in on_device)
    limits = CacheLimits(config.limits.max_rows, config.cache_tokens, config.context)
    runners: list[Runner] = []
    for model in models:
        runners.append(model.runner(replace(limits, room=tokens[model.device] * model.bytes_per_token)))
        # A draft with a shorter context drafts up to its length; a longer one than the target's is useless.
        limits = replace(limits, context=runners[0].info.context, context_is_ceiling=True)
    if head:
        target, head_runner = runners
        assert isinstance(target, CapturingRunner)
        assert isinstance(head_runner, HeadRunner)
        target.capture_states(head_runner.spec.capture)
    return runners


def _round_bytes(model: LoadedModel, config: EngineConfig, deepest: Callable[[], int]) -> int:
    """Bytes that rounds take on a device in addition to weights and caches; 0 on a CPU, where they are not counted."""
    if model.config is None or model.device.type == "cpu":
        return 0
    limits, context = config.limits.settled(cpu=False), min(config.context or model.info.context, model.info.context)
    tokens = limits.max_rows * (deepest() + 1)
    if model.state_width:
        return _head_bytes(model, model.config, limits, context=context, verified=tokens)
    verified = padded(tokens, tile_of(limits.max_rows, model.info))
    num_logits = padded(limits.max_rows, tile_of(1, model.info))
    passes = (verified, verified), (padded(limits.prefill_tokens, TILES[-1]), num_logits)
    return beside_cache(model.config, DTYPES[model.info.dtype], context, passes)


def _head_bytes(model: LoadedModel, config: DecoderConfig, limits: EngineLimits, *, context: int, verified: int) -> int:
    """Bytes of a head in addition to weights and cache, for `context` tokens per row and `verified` tokens per round.

    The target's states are held four times: in graph outputs, by the running pass, concatenated, and by row.
    """
    rows = limits.max_rows
    kept = model.state_width * (rows * MAX_BUFFERED + 4 * (verified + limits.prefill_tokens))
    steps = model.state_width + 4 * config.hidden + 2 * config.heads * config.head_dim + 3 * config.mlp
    attended = context * (2 * config.cache_shape.width + READ * config.heads // config.kv_heads)
    scores = SCORES * rows * (model.info.deepest or 1) * config.vocab_size
    return (kept + READ * steps + attended) * DTYPES[model.info.dtype].itemsize + 4 * scores


def decoder(info: ModelInfo, config: DecoderConfig, weights: DecoderWeights, plan: CachePlan) -> Runner:
    """The decoder for the device that the weights are on."""
    make = plain_decoder if weights.embedding.device.type == "cpu" else device_decoder
    return make(info, config, weights, plan)
