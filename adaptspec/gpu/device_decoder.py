"""A decoder on a device: passes of static shapes over a paged cache, whose products run at fixed numbers of tokens.

With the order of attention's sums fixed too (see `plan.SPLIT`), what a token's logits are does not depend on what else
is in its pass: in 16 bits, where the last bit decides ties, text is the same at every depth.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch

from adaptspec.gpu import ops
from adaptspec.gpu.ops import HeadNorm
from adaptspec.gpu.paged_cache import PagedCache
from adaptspec.gpu.plan import AttentionPlan, Workspace, programs, tiles
from adaptspec.models.attention import Heads, Span, last_places, new_spans, positions
from adaptspec.models.config import DecoderConfig
from adaptspec.models.kv_cache import CachePlan
from adaptspec.models.layers import Norm, RmsNorm, rotations
from adaptspec.models.runner import ModelInfo, Packed
from adaptspec.models.weights import DecoderWeights
from adaptspec.types import IntArray

BUCKETS = (16, 32, 64, 128, 256)  # tokens of a pass; above them multiples of the last
WORKSPACE = 256  # tokens; wider passes have enough tiles for every processor


@dataclass(frozen=True)
class Inputs:
    """T tokens of a pass, on the device. Padding has slots of nobody's block and sees nothing."""

    tokens: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int32 [T]
    slots: torch.Tensor  # int64 [T]: where in the cache their keys and values go
    base: torch.Tensor  # int32 [T] and
    seen: torch.Tensor  # int64 [T]: see `AttentionPlan`
    tiles: torch.Tensor  # int32 [n, 3]


def device_decoder(info: ModelInfo, config: DecoderConfig, weights: DecoderWeights, plan: CachePlan) -> DeviceDecoder:
    """A decoder with a cache of this plan."""
    like = weights.embedding
    return DeviceDecoder(info, config, weights, PagedCache(config.cache_shape, plan, like.dtype, like.device))


def bucket(tokens: int) -> int:
    """How many tokens a pass of so many is padded to."""
    return next((size for size in BUCKETS if size >= tokens), -(-tokens // BUCKETS[-1]) * BUCKETS[-1])


class DeviceDecoder:
    """A Llama, Mistral, Qwen2 or Qwen3 model with its cache on a device; satisfies `Runner`."""

    def __init__(self, info: ModelInfo, config: DecoderConfig, weights: DecoderWeights, cache: PagedCache) -> None:
        self.info = info
        self.device = weights.embedding.device
        self.cache = cache
        self.heads = Heads(config.heads, config.kv_heads, config.head_dim)
        self._config, self._weights = config, weights
        table = rotations(config.rope, config.head_dim, info.context).to(self.device)
        self._cos, self._sin = table.real.contiguous(), table.imag.contiguous()
        self._workspace = Workspace.of(WORKSPACE, self.heads, info.context, self.device)
        self.ops, self._processors = _kernels(self.device)
        self.rubbish = cache.held(cache.nobody)[0] * cache.block_size  # where padding is written
        # What `Runner` asks of rows is all the cache's.
        self.reserve, self.length = cache.reserve, cache.length
        self.truncate, self.keep, self.free = cache.truncate, cache.keep, cache.free

    @property
    def free_memory(self) -> float:
        return self.cache.free_share

    def run(self, inputs: Inputs) -> torch.Tensor:
        """States [T, hidden] behind the last norm; nothing of it asks the host, so a graph can hold it."""
        weights, residual, added = self._weights, self._weights.embedding.index_select(0, inputs.tokens), None
        plans = {window: self._plan(inputs, window) for window in set(self._config.windows)}
        for layer, pool, window in zip(weights.layers, self.cache.pool, self._config.windows, strict=True):
            qkv = layer.qkv(self._normed(added, residual, layer.attention_norm))
            norm = None if layer.qk_norm is None else HeadNorm(*_plain(layer.qk_norm))
            queries = self.ops.rope_store(qkv, self._cos, self._sin, inputs.positions, inputs.slots, pool, norm)
            added = layer.output(self.ops.attend(queries, pool, plans[window]))
            added = layer.down(self.ops.silu_mul(layer.gate_up(self._normed(added, residual, layer.mlp_norm))))
        return self._normed(added, residual, weights.norm)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """[N, vocab] in float32, of states [N, hidden]. N should be one of `bucket`'s."""
        return self._weights.head.logits(states)

    def slots(self, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Where in the cache the `places` [T] of these rows [T] of the table lie."""
        size = self.cache.block_size
        blocks = self.cache.table[rows, torch.div(places, size, rounding_mode="floor")]
        return blocks.long() * size + places % size

    @torch.inference_mode()
    def forward(self, packed: Packed) -> torch.Tensor:
        """See `Runner.forward`."""
        spans = new_spans(self.cache, packed)
        self.cache.send()
        states = self.run(self._inputs(packed.tokens, spans))
        last = last_places(spans, packed.wanted.tolist())
        padded = np.pad(last, (0, bucket(max(len(last), 1)) - len(last)))
        logits = self.logits(states.index_select(0, self._sent(padded)))[: len(last)]
        for span in spans:
            self.cache.set_length(span.row, span.end)
        return logits

    def _inputs(self, tokens: IntArray, spans: Sequence[Span]) -> Inputs:
        size, rows = bucket(len(tokens)), np.array([span.row for span in spans])
        counts = np.array([span.size for span in spans])
        owners, places = np.repeat(rows, counts), np.concatenate([np.arange(span.start, span.end) for span in spans])
        base, seen = places.copy(), np.zeros(len(tokens), dtype=np.int64)
        at = 0
        for span in spans:
            if span.seen is not None:
                own = slice(at, at + span.size)
                base[own], seen[own] = branches(span)
            at += span.size
        more = size - len(tokens)
        owners, places = np.pad(owners, (0, more), constant_values=self.cache.nobody), np.pad(places, (0, more))
        laid = tiles(rows, counts, self.heads)
        return Inputs(
            self._sent(np.pad(tokens, (0, more))),
            self._sent(np.pad(positions(spans), (0, more)).astype(np.int32)),
            self.slots(self._sent(owners), self._sent(places)),
            self._sent(np.pad(base, (0, more), constant_values=-1).astype(np.int32)),
            self._sent(np.pad(seen, (0, more))),
            self._sent(np.pad(laid, ((0, size - len(laid)), (0, 0))).astype(np.int32)),
        )

    def _plan(self, inputs: Inputs, window: int | None) -> AttentionPlan:
        several = programs(len(inputs.tiles), self.heads, self.info.context, self._processors)
        shared = several > 1 and len(inputs.tokens) <= WORKSPACE
        return AttentionPlan(
            self.heads,
            self.cache.block_size,
            inputs.tiles,
            inputs.base,
            inputs.seen,
            inputs.slots,
            inputs.positions,
            self.cache.table,
            window,
            self._workspace if shared else None,
            several if shared else 1,
        )

    def _normed(self, added: torch.Tensor | None, residual: torch.Tensor, norm: Norm) -> torch.Tensor:
        normed: torch.Tensor = self.ops.add_norm(added, residual, *_plain(norm))
        return normed

    def _sent(self, numbers: IntArray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self.device)


def branches(span: Span) -> tuple[IntArray, IntArray]:
    """`base` and `seen` [size] of the tokens of a row that branches: what all of them see is no longer told one by one.

    A window of a newest token and 64 nodes is thus 64 bits.
    """
    assert span.seen is not None
    common = int(np.logical_and.accumulate(span.seen.all(axis=0)).sum())
    others = span.seen.copy()
    others[np.arange(span.size), np.arange(-span.size, 0)] = False
    told = others[:, common:]
    packed = np.packbits(np.pad(told, ((0, 0), (0, 64 - told.shape[1]))), axis=1, bitorder="little")
    return np.minimum(span.end - told.shape[1], np.arange(span.start, span.end)), packed.view(np.int64)[:, 0]


def _plain(norm: Norm) -> tuple[torch.Tensor, float]:
    assert isinstance(norm, RmsNorm), "a device's norms are plain ones"
    return norm.weight, norm.eps


def _kernels(device: torch.device) -> tuple[ModuleType, int]:
    """The functions of `ops` that are fastest there, and how many processors the device has."""
    if device.type != "cuda" or torch.version.cuda is None:
        return ops, 1
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    name = "kernels" if importlib.util.find_spec("triton") else "ops"  # CUDA builds of torch bring Triton
    return importlib.import_module(f"adaptspec.gpu.{name}"), processors
