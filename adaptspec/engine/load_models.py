"""Loads the target and its draft on their devices, with caches that share the remaining memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from adaptspec.config import EngineConfig
from adaptspec.engine.cache_memory import cache_bytes
from adaptspec.errors import ConfigError
from adaptspec.gpu.decoder import FOLLOWER, gpu_decoder
from adaptspec.gpu.heads import GPU_HEADS
from adaptspec.gpu.tensor_parallel import ALONE, RankGroup, start_ranks
from adaptspec.models.config import WHOLE, DecoderConfig, Part
from adaptspec.models.gguf import is_gguf, read_header
from adaptspec.models.heads.head_checkpoint import PLAIN_HEADS, HeadMakers, is_head, load_head
from adaptspec.models.heads.head_runner import HeadRunner
from adaptspec.models.kv_cache import CacheLimits, CachePlan, bytes_for_cache
from adaptspec.models.loading import LoadedModel, MakeDecoder, check_parts, device_of, load_model, plain_decoder
from adaptspec.models.model_files import weight_files
from adaptspec.models.runner import CapturingRunner, ModelInfo, Runner
from adaptspec.models.self_speculation import MTP
from adaptspec.models.source import find_model
from adaptspec.models.weights import DecoderWeights

StartRanks = Callable[[int, torch.device, str], RankGroup]


def load_models(
    config: EngineConfig,
    max_depth: int,
    describe: Callable[[ModelInfo], ModelInfo] = lambda info: info,
    make: MakeDecoder | None = None,
    *,
    free_bytes: Callable[[torch.device], int] = bytes_for_cache,
    start_ranks: StartRanks = start_ranks,
    head_makers: HeadMakers | None = None,
) -> tuple[Runner, Runner | None]:
    """Load the target and, if one is configured, its draft. All weights are loaded before caches are sized.

    `max_depth` is the deepest draft of a round. `describe` adds the tokenizer's data to the target's info. `make` makes
    decoders where ranks do not share the target; None: `decoder`. `free_bytes` returns the bytes that all caches on a
    device may take. `start_ranks` starts the processes that share a target. `head_makers` are those
    of a head; None: the ones for its device.

    Raises:
        ModelError: a model cannot be used, or memory is short.
        ConfigError: a setting does not fit the models or devices.
    """
    _check_draft_files(config)
    with_head = _drafts_with_head(config)
    _check_settings(config, with_head=with_head)
    make_target, make_draft = make or decoder, make or partial(decoder, drafts=True)
    group = ALONE
    if config.tensor_parallel_size > 1:
        check_parts(config.target_path, config.tensor_parallel_size)
        group = start_ranks(config.tensor_parallel_size, device_of(config.device), FOLLOWER)
        make_target = partial(gpu_decoder, group=group)
        make_draft = partial(gpu_decoder, group=group.alone, drafts=True)
    try:
        group.send("load", config.target_path, config.dtype)
        target = _load(config, config.target_path, config.device, make_target, group.part)
        if with_head:
            makers = head_makers or (GPU_HEADS if target.device.type == "cuda" else PLAIN_HEADS)
            draft: LoadedModel | None = load_head(
                str(config.draft_path), target, pickles=config.allow_pickle, makers=makers
            )
        else:
            draft = _load_draft(config, target, make_draft)
        described = replace(target, info=describe(target.info))
        models = [model for model in (described, draft) if model is not None]
        free_on_ranks = group.answers()
        free = {device: free_bytes(device) for device in dict.fromkeys(model.device for model in models)}
        free[target.device] = min([free[target.device], *free_on_ranks])  # all ranks cache the same tokens
        return _start(config, models, cache_bytes(config, max_depth, models, free))
    except BaseException:
        group.close()
        raise


def decoder(
    info: ModelInfo, config: DecoderConfig, weights: DecoderWeights, plan: CachePlan, *, drafts: bool = False
) -> Runner:
    """The decoder for the device that the weights are on; `drafts`: see `gpu_decoder`."""
    make = plain_decoder if weights.embedding.device.type == "cpu" else partial(gpu_decoder, drafts=drafts)
    return make(info, config, weights, plan)


def _check_draft_files(config: EngineConfig) -> None:
    """Refuse a draft without weights before the target is read, which may take minutes."""
    if config.draft_path is None:
        return
    found = find_model(config.draft_path, gguf=True, pickles=config.allow_pickle)
    if is_gguf(found):
        read_header(found)
    else:
        weight_files(found, pickles=config.allow_pickle)


def _drafts_with_head(config: EngineConfig) -> bool:
    """Whether the draft is a head, in a directory of its own or in the target's files."""
    if config.draft_path is None:
        return False
    return config.self_speculation == MTP if config.self_speculation is not None else is_head(config.draft_path)


def _check_settings(config: EngineConfig, *, with_head: bool) -> None:
    """Raises ConfigError if a setting does not fit the kinds of models."""
    if config.self_speculation and config.tensor_parallel_size > 1:
        raise ConfigError(
            f"--draft {config.draft} needs the whole target on one device: leave --tensor-parallel-size out, or use a "
            "draft model"
        )
    paths = [config.target_path]
    if config.draft_path is not None and not with_head:
        paths.append(config.draft_path)
    if any(is_gguf(find_model(path, gguf=True)) for path in paths):
        return
    if config.gpu_layers:
        raise ConfigError("--gpu-layers is for GGUF files; a model with safetensors runs on --device whole")
    if config.runner == "llama.cpp":
        raise ConfigError("--runner llama.cpp is for GGUF files; leave it out for a model with safetensors")


def _load_draft(config: EngineConfig, target: LoadedModel, make: MakeDecoder) -> LoadedModel | None:
    """The draft model, if there is one."""
    if config.draft_path is None:
        return None
    if config.self_speculation is not None:
        return target.self_speculation(config.self_speculation)
    return _load(config, config.draft_path, config.device, make)


def _load(config: EngineConfig, path: str, device: str, make: MakeDecoder, part: Part = WHOLE) -> LoadedModel:
    return load_model(
        path,
        device=device,
        dtype=config.dtype,
        make=make,
        part=part,
        gpu_layers=config.gpu_layers,
        runner=config.runner,
    )


def _start(config: EngineConfig, models: Sequence[LoadedModel], room: Sequence[int]) -> tuple[Runner, Runner | None]:
    """The runners of the target and its draft, each with a cache of up to `room` bytes."""
    limits = CacheLimits(config.max_num_seqs, config.cache_tokens, config.max_model_len, room=room[0])
    target = models[0].runner(limits)
    if len(models) == 1:
        return target, None
    # A draft with a shorter context drafts up to its length; a longer one than the target's is useless.
    draft = models[1].runner(replace(limits, context=target.info.context, context_is_ceiling=True, room=room[1]))
    if isinstance(draft, HeadRunner):
        assert isinstance(target, CapturingRunner)
        target.capture_states(draft.spec.capture)
    return target, draft
