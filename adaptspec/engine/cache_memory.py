"""Divides the free memory of devices among the caches of the target and its draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from adaptspec.config import EngineConfig
from adaptspec.drafting.head_drafter import CATCH_UP_TOKENS
from adaptspec.engine.core import EngineLimits
from adaptspec.gpu.decoder import bytes_without_cache
from adaptspec.gpu.passes import bytes_of_passes
from adaptspec.models.config import DecoderConfig
from adaptspec.models.heads.head_runner import MAX_BUFFERED
from adaptspec.models.loading import DTYPES, LoadedModel


def cache_bytes(
    config: EngineConfig, max_depth: int, models: Sequence[LoadedModel], free: Mapping[torch.device, int]
) -> list[int]:
    """Bytes for the cache of each model, the target first, given the `free` bytes of each device.

    The models on a device cache the same number of tokens, after the memory of rounds is set apart. `max_depth` is the
    deepest draft of a round.
    """
    target, tokens = models[0], {}
    for device, left in free.items():
        on_device = [model for model in models if model.device == device]
        # Per pass of a round, a draft model reads one or two tokens per row, a head the states of all verified tokens.
        depths = [max_depth if model is target or model.state_width else 1 for model in on_device]
        rounds = sum(_round_bytes(model, config, depth) for model, depth in zip(on_device, depths, strict=True))
        tokens[device] = max(0, left - rounds) // sum(model.bytes_per_token for model in on_device)
    return [tokens[model.device] * model.bytes_per_token for model in models]


def _round_bytes(model: LoadedModel, config: EngineConfig, depth: int) -> int:
    """Bytes that rounds take on a device in addition to weights and caches; 0 on a CPU, where they are not counted.

    A pass of a round has up to `depth` tokens per row, and one more.
    """
    if model.config is None or model.device.type == "cpu":
        return 0
    limits = EngineLimits.from_config(config).settled(cpu=False)
    context = min(config.max_model_len or model.info.context, model.info.context)
    tokens = limits.max_rows * (depth + 1)
    if model.state_width:
        return _head_bytes(model, model.config, limits, context=context, verified=tokens)
    return bytes_without_cache(
        model.config,
        DTYPES[model.info.dtype],
        context,
        rows=limits.max_rows,
        decoded=tokens,
        prompt=limits.prefill_tokens + tokens,
    )


def _head_bytes(model: LoadedModel, config: DecoderConfig, limits: EngineLimits, *, context: int, verified: int) -> int:
    """Bytes of a head in addition to weights and cache, for `context` tokens per row and `verified` tokens per round.

    The target's states are held four times: in graph outputs, by the running pass, concatenated, and by row.
    """
    rows = limits.max_rows
    kept = model.state_width * (rows * MAX_BUFFERED + 4 * (verified + limits.prefill_tokens))
    steps = model.state_width + 4 * config.hidden + 2 * config.heads * config.head_dim + 3 * config.mlp
    attended = context * (2 * config.cache_shape.width + CATCH_UP_TOKENS * config.heads // config.kv_heads)
    scores = 2 * rows * (model.info.deepest or 1) * config.vocab_size
    room = (kept + CATCH_UP_TOKENS * steps + attended) * DTYPES[model.info.dtype].itemsize + 4 * scores
    return room + bytes_of_passes(config, context)
