"""Decoders of well-known shapes without weights, for fake CUDA, and what parts of their rounds move (see `fake`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorDeviceMismatchError,
)

from adaptspec.bench.random_models import LLAMA_8B, QWEN_HALF_B
from adaptspec.gpu import ops
from adaptspec.gpu.device_decoder import DeviceDecoder, beside_cache
from adaptspec.gpu.draft_bounds import Bounds
from adaptspec.gpu.paged_cache import PagedCache
from adaptspec.gpu.plan import SPLIT, AttentionPlan, tile_tokens
from adaptspec.gpu.round import DeviceRounds
from adaptspec.models.config import DecoderConfig, read_decoder_config
from adaptspec.models.kv_cache import CUDA_BLOCK, CachePlan
from adaptspec.models.layers import Linear, rms_norm
from adaptspec.models.runner import ModelInfo
from adaptspec.models.weights import DecoderWeights, LayerWeights
from tests.gpu.fake import Traffic, size, tensors

CUDA, BF16, CONTEXT = torch.device("cuda"), torch.bfloat16, 32768
SHAPES: dict[str, dict[str, Any]] = {
    "llama-8b": {**LLAMA_8B, "max_position_embeddings": CONTEXT},
    "qwen-0.5b": {**QWEN_HALF_B, "max_position_embeddings": CONTEXT, "vocab_size": 151_936},
}
HEARD = ", heard"  # by a head that reads three of its states


def passes(asked: list[tuple[str, int, int, int]]) -> list[dict[str, Any]]:
    """What a captured part of a round takes, for each (shape, rows, tokens cached in each, new tokens in each).

    Parts: a verify pass of the 8B model, or a step of the draft model. `needed` bytes: every weight that a product
    reads, and every key and value seen, once. `copies` are those from and to the host; `peak` is the memory that
    it needs, with logits that stay, and `counted` what is kept free for it.
    """
    return [_part(*one) for one in asked]


def _part(name: str, rows: int, cached: int, width: int) -> dict[str, Any]:
    model = decoder(name, rows)
    if name.endswith(HEARD):
        model.listen(mock.Mock(layers=(2, 16, 32)))
    with mock.patch("adaptspec.gpu.round.Block", FakeBlock), mock.patch.object(torch.cuda, "Event", mock.Mock()):
        rounds = DeviceRounds(model, model, rows, width, ())
    tokens = rounds._width(rows * width, rows) if name.startswith("llama") else max(rows, 16)
    held, standing = (beside_cache(model._config, BF16, CONTEXT, one) for one in ([(tokens, tokens)], []))
    with Traffic() as traffic, mock.patch.object(model, "ops", Kernels(traffic, rows, cached + width, width)):
        if name.startswith("llama"):
            kept = rounds._scores[:tokens]
            rounds._verify(tokens, (rows, False))
            rounds._choose(tokens, 0)
        else:
            assert rounds._drafts is not None
            kept = rounds._drafts.logits
            rounds._drafts._next(rows, 0)
            rounds._drafts._draw(rows, 0)
    seen = rows * (cached + width) * model.cache.shape.bytes_per_token(BF16)
    return {
        "kernels": traffic.kernels.total(),
        "moved": traffic.moved.total(),
        "needed": read_by_products(model) + seen,
        "copies": traffic.copies,
        "peak": traffic.peak + size(kept),
        "counted": held - standing,
    }


class FakeBlock:
    """A `staging.Block` whose host side is never sent."""

    def __init__(self, layout: dict[str, tuple[torch.dtype, tuple[int, ...]]], device: torch.device) -> None:
        self.device = {name: torch.empty(shape, dtype=dtype, device=device) for name, (dtype, shape) in layout.items()}

    def on(self, device: torch.device) -> FakeBlock:
        return self


class Kernels:
    """`ops` in place of `kernels`: each call counts as what the kernel of its name reads and writes.

    Of rows that see so many `places`, with so many tokens of each in a pass.
    """

    def __init__(self, traffic: Traffic, rows: int, places: int, width: int) -> None:
        self._traffic, self._rows, self._places, self._width = traffic, rows, places, width

    def attend(self, queries: torch.Tensor, pool: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        """Every tile reads the keys and values of its row; shared splits are written and merged."""
        tiles = self._rows * -(-self._width // tile_tokens(plan.heads))
        moved = 2 * size(queries) + tiles * self._places * pool.shape[1] * pool.element_size()
        if plan.workspace is not None:
            splits = self._rows * self._width * plan.heads.query * -(-self._places // SPLIT)
            moved += 2 * 4 * splits * (plan.heads.dim + 2)
        return self._counted("attend", 2, moved, ops.attend, queries, pool, plan)  # a merge, or zeros for padding

    def rope_store(self, qkv: torch.Tensor, *rest: Any) -> torch.Tensor:
        return self._counted("rope_store", 1, 2 * size(qkv), ops.rope_store, qkv, *rest)

    def add_norm(self, x: torch.Tensor | None, residual: torch.Tensor, *rest: Any) -> torch.Tensor:
        moved = (2 if x is None else 4) * size(residual)
        return self._counted("add_norm", 1, moved, ops.add_norm, x, residual, *rest)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self._counted("silu_mul", 1, 3 * size(gate_up) // 2, ops.silu_mul, gate_up)

    def choose(self, logits: torch.Tensor, *rest: Any) -> ops.Choice:
        """Each logit is read once; so are the keys of tokens, which caches hold."""
        return self._counted("choose", 2, size(logits) + size(rest[2]), ops.choose, logits, *rest)

    def pass_inputs(self, reading: ops.Reading, *rest: Any) -> tuple[torch.Tensor, ...]:
        """Five numbers of each token are written, and as many read."""
        moved = 2 * rest[-1] * (3 * 8 + 2 * 4)
        found: tuple[torch.Tensor, ...] = self._counted("pass_inputs", 1, moved, ops.pass_inputs, reading, *rest)
        return found

    def extend_drafts(self, found: ops.Choice, drafts: ops.Drafts, bounds: Bounds, *rest: Any) -> None:
        """Of every row a column of each table is read, and what is drafted written."""
        moved = 4 * len(drafts.asked) * (len(found) + len(drafts) + len(bounds)) * found.token[0].numel()
        self._counted("extend_drafts", 1, moved, ops.extend_drafts, found, drafts, bounds, *rest)

    def _counted(self, name: str, kernels: int, moved: int, function: Callable[..., Any], *given: Any) -> Any:
        with self._traffic.paused():
            result = function(*given)
        self._traffic.add(name, moved, kernels)
        self._traffic.hold([one for one in tensors(result) if all(one is not each for each in given)])
        return result


def refused() -> dict[str, str]:
    """What becomes of code that reads numbers of the device, or mixes devices."""
    x = torch.empty(3, 4, device=CUDA)
    tries: dict[str, Callable[[], object]] = {
        "item": lambda: x.sum().item(),
        "tolist": x.tolist,
        "mask": lambda: x[x > 0],
        "nonzero": x.nonzero,
        "branch": lambda: bool((x > 0).any()),
        "mixed": lambda: x + torch.zeros(4),
        "mixed index": lambda: x.index_select(0, torch.from_numpy(np.arange(2))),
        "neither": lambda: (x[:2] @ x[:2].t()).softmax(1).argmax(1),
    }
    found: dict[str, str] = {}
    for name, one in tries.items():
        try:
            found[name] = type(one()).__name__
        except (DataDependentOutputException, DynamicOutputShapeException, FakeTensorDeviceMismatchError) as error:
            found[name] = type(error).__name__
    return found


def decoder(name: str, rows: int) -> DeviceDecoder:
    """A decoder in bfloat16, on a device of 132 processors, for so many rows."""
    name = name.removesuffix(HEARD)
    config, block = read_decoder_config(SHAPES[name]), CUDA_BLOCK
    cache = PagedCache(config.cache_shape, CachePlan(rows * CONTEXT, CONTEXT, block, rows), BF16, CUDA)
    family = str(SHAPES[name]["model_type"])
    info = ModelInfo(name, family, 0, config.vocab_size, CONTEXT, name, (), "bfloat16")
    model = DeviceDecoder(info, config, weights_of(config), cache)
    model._processors = 132
    return model


def read_by_products(model: DeviceDecoder) -> int:
    """Bytes of all matrices."""
    weights = model._weights
    matrices = [part.weight for one in weights.layers for part in (one.qkv, one.output, one.gate_up, one.down)]
    return sum(one.nbytes for one in (*matrices, weights.head.weight) if one is not None)


def weights_of(config: DecoderConfig) -> DecoderWeights:
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim

    def linear(wide: int, out: int, biased: bool = False) -> Linear:
        return Linear.of(made(wide, out), made(out) if biased else None)

    layers = tuple(
        LayerWeights(
            attention_norm=rms_norm(made(config.hidden), config.norm_eps),
            qkv=linear(config.hidden, q + 2 * kv, config.qkv_bias),
            qk_norm=None,
            output=linear(q, config.hidden),
            mlp_norm=rms_norm(made(config.hidden), config.norm_eps),
            gate_up=linear(config.hidden, 2 * config.mlp),
            down=linear(config.mlp, config.hidden),
        )
        for _ in range(config.layers)
    )
    embedding = made(config.vocab_size, config.hidden)
    head = Linear.of(embedding.t(), copied=False) if config.tied else linear(config.hidden, config.vocab_size)
    return DecoderWeights(embedding, layers, rms_norm(made(config.hidden), config.norm_eps), head, 0)


def made(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=BF16, device=CUDA)
