"""The target and its draft, loaded where they are to run, and what memory is left shared out among their caches."""

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
from adaptspec.models.own_drafts import MTP
from adaptspec.models.runner import CapturingRunner, ModelInfo, Runner
from adaptspec.models.source import find_model
from adaptspec.models.weights import DecoderWeights

Room = Callable[[torch.device], int]  # bytes that all caches on a device may take
READ = 512  # tokens that a head reads in one pass, at most


def load_models(
    config: EngineConfig,
    places: Sequence[str],
    deepest: Callable[[], int],
    described: Callable[[ModelInfo], ModelInfo] = lambda info: info,
    make: MakeDecoder | None = None,
    *,
    room: Room | None = None,
) -> list[Runner]:
    """The target and, if there is a second place, its draft. All weights are loaded before any cache is sized.

    `deepest` is asked for the most tokens that may be drafted where memory is counted. `described` adds to the target's
    info what its tokenizer says. `make` makes the decoders in place of `decoder`. `room` is asked for the bytes that
    caches may take; None: what is free.
    """
    head = len(places) > 1 and (config.own_draft == MTP or (config.own_draft is None and is_head(places[1])))
    group = _ranks(config, places, head=head)
    try:
        target, *drafts = _load(
            config,
            (places, head),
            (group, make or decoder),
            deepest=deepest,
            described=described,
            room=room or bytes_for_cache,
        )
    except BaseException:
        group.close()
        raise
    if config.exact == "strict" and not isinstance(target, DeviceDecoder):
        raise ConfigError(
            "--exact strict shapes the passes of Llama-like models on CUDA; leave it out here (on a CPU in float32 no "
            "batch has been seen to change a text, but products of other sizes may round in other ways)"
        )
    return [target, *drafts]


def _ranks(config: EngineConfig, places: Sequence[str], *, head: bool) -> Group:
    """Those that share the target; what cannot be shared is refused before they start."""
    if head and config.draft_device:
        raise ConfigError(
            f"--draft {config.draft} is a head, which drafts from the target's states, where these are: leave "
            "--draft-device out, or use a draft model"
        )
    if config.own_draft and (config.tensor_parallel_size > 1 or config.draft_device):
        raise ConfigError(
            f"--draft {config.draft} is made of the model that is here, whole: it goes neither with "
            "--tensor-parallel-size nor with --draft-device; leave those out, or give a draft model"
        )
    if config.tensor_parallel_size == 1:
        return ALONE
    check_parts(places[0], config.tensor_parallel_size)
    return lead(config.tensor_parallel_size, device_of(config.device))


def _load(
    config: EngineConfig,
    what: tuple[Sequence[str], bool],
    how: tuple[Group, MakeDecoder],
    *,
    deepest: Callable[[], int],
    described: Callable[[ModelInfo], ModelInfo],
    room: Room,
) -> list[Runner]:
    (places, head), (group, make) = what, how
    group.tell("load", places[0], config.dtype)
    makes: list[MakeDecoder] = [make] * 2 if group is ALONE else [partial(device_decoder, group=group), device_decoder]
    parts, where = (group.part, WHOLE), (config.device, config.draft_device or config.device)
    own = places[:1] if config.own_draft or head else places
    if not any(is_gguf(find_model(place, gguf=True)) for place in own):
        if config.gpu_layers:
            raise ConfigError("--gpu-layers is for GGUF files; a model with safetensors runs on --device whole")
        if config.runner == "llama.cpp":
            raise ConfigError("--runner llama.cpp is for GGUF files; leave it out for a model with safetensors")
    models = [
        load_model(
            place,
            device=device,
            dtype=config.dtype,
            make=make,
            part=part,
            gpu_layers=config.gpu_layers,
            runner=config.runner,
        )
        for place, device, make, part in zip(own, where, makes, parts, strict=False)
    ]
    if head:
        models.append(load_head(places[1], models[0], pickles=config.allow_pickle))
    elif config.own_draft:
        models.append(_own_draft(models[0], config.own_draft))
    info = replace(described(models[0].info), strict=config.exact == "strict", eager=config.eager)
    models[0] = replace(models[0], info=info)
    answers, tokens = group.answers(), {}
    for device in dict.fromkeys(model.device for model in models):
        # What memory is left on it, its models share so that each holds as many tokens, on all ranks the same.
        mine = [model for model in models if model.device == device]
        left = min([room(device), *(answers if device == models[0].device else ())])
        # In a round a draft model reads one or two tokens a row at a time, a head the states of all verified tokens.
        left -= sum(_beside_cache(m, config, deepest if m is models[0] or m.state_width else lambda: 1) for m in mine)
        tokens[device] = max(0, left) // sum(model.bytes_per_token for model in mine)
    limits = CacheLimits(config.limits.max_rows, config.cache_tokens, config.context)
    runners: list[Runner] = []
    for model in models:
        runners.append(model.runner(replace(limits, room=tokens[model.device] * model.bytes_per_token)))
        # A draft of a shorter context drafts as far as it reaches; a longer one than the target's is of no use.
        limits = replace(limits, context=runners[0].info.context, context_is_ceiling=True)
    if head:
        target, own_head = runners
        assert isinstance(target, CapturingRunner)
        assert isinstance(own_head, HeadRunner)
        target.capture_states(own_head.spec.capture)
    return runners


def _own_draft(model: LoadedModel, name: str) -> LoadedModel:
    if model.own_draft is None:
        raise ConfigError(f"{model.folder}: only Llama-like models can draft for themselves; use a draft model")
    return model.own_draft(name)


def _beside_cache(model: LoadedModel, config: EngineConfig, deepest: Callable[[], int]) -> int:
    """Bytes that rounds take on a device; where memory is the system's, nobody counts."""
    if model.config is None or model.device.type == "cpu":
        return 0
    limits, places = config.limits.settled(cpu=False), min(config.context or model.info.context, model.info.context)
    tokens = limits.max_rows * (deepest() + 1)
    if model.state_width:
        return _beside_head(model, model.config, limits, (places, tokens))
    verified = padded(tokens, tile_of(limits.max_rows, model.info))
    asked = padded(limits.max_rows, tile_of(1, model.info))
    passes = (verified, verified), (padded(limits.prefill_tokens, TILES[-1]), asked)
    return beside_cache(model.config, DTYPES[model.info.dtype], places, passes)


def _beside_head(model: LoadedModel, config: DecoderConfig, limits: EngineLimits, most: tuple[int, int]) -> int:
    """Bytes of a head beside its weights and its cache; `most` places of a row, and tokens verified in a round.

    The target's states are held where graphs leave them, by a pass that is under way, put together, and by their rows.
    """
    (places, verified), rows = most, limits.max_rows
    kept = model.state_width * (rows * MAX_BUFFERED + 4 * (verified + limits.prefill_tokens))
    steps = model.state_width + 4 * config.hidden + 2 * config.heads * config.head_dim + 3 * config.mlp
    attended = places * (2 * config.cache_shape.width + READ * config.heads // config.kv_heads)
    scores = SCORES * rows * (model.info.deepest or 1) * config.vocab_size
    return (kept + READ * steps + attended) * DTYPES[model.info.dtype].itemsize + 4 * scores


def decoder(info: ModelInfo, config: DecoderConfig, weights: DecoderWeights, plan: CachePlan) -> Runner:
    """The decoder for the device that the weights are on."""
    make = plain_decoder if weights.embedding.device.type == "cpu" else device_decoder
    return make(info, config, weights, plan)
