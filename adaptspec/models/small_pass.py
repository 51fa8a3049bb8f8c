"""A forward pass over a few tokens of a few rows on a CPU: products by torch, everything small by numpy.

Where a pass takes a millisecond, most of it is what each operation costs beside its arithmetic: 3 to 6 us in torch,
under 1 us in numpy. Both work on the same memory here. The plain form is in `Decoder`, and a test holds the two equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from adaptspec.models.attention import (
    AttentionMetadata,
    Heads,
    Span,
    additive,
    causal_mask,
    fold,
    last_places,
    positions,
    unfold,
)
from adaptspec.models.config import DecoderConfig
from adaptspec.models.in_place_attention import InPlaceAttention
from adaptspec.models.kv_cache import KVCache
from adaptspec.models.layers import LengthNorm
from adaptspec.models.runner import Packed
from adaptspec.models.weights import DecoderWeights, LayerWeights
from adaptspec.progress import report_progress
from adaptspec.types import IntArray

Floats = npt.NDArray[np.float32]
# Logits of wanted tokens, and states [N, layers asked for x hidden] of all before these layers, side by side.
Computed = tuple[torch.Tensor, torch.Tensor]

_MASKED = 2048  # positions; what a mask takes to make is nothing beside attending to more
# Tokens of one row, and of all rows; beyond, arithmetic outweighs overhead and torch's threads are worth theirs.
WIDEST, MOST = 16, 128


class SmallPass:
    """Passes of up to `MOST` tokens, `WIDEST` of each row, in float32 on a CPU."""

    def __init__(self, config: DecoderConfig, weights: DecoderWeights, cache: KVCache, rotations: torch.Tensor) -> None:
        """`rotations` [context, 1, head_dim / 2]. `fits` says whether a model can be run like this."""
        self._cache = cache
        self.adopt(weights)
        self._heads = heads = Heads(config.heads, config.kv_heads, config.head_dim)
        self._rotations: npt.NDArray[np.complex64] = rotations.numpy()
        self._pool: list[Floats] = [layer.numpy() for layer in cache.pool]
        # Memory for the widest pass: hidden, normed, qkv, gate and up, active. A narrower one takes the beginning.
        widths = (config.hidden, config.hidden, (heads.query + 2 * heads.kv) * heads.dim, 2 * config.mlp, config.mlp)
        self._memory = [torch.empty(MOST, width) for width in widths]
        self._buffers: dict[int, _Buffers] = {}
        # Packed queries and `_Row.folded`, by their first token and their number.
        self._queries: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._masks: dict[int, torch.Tensor] = {}  # by width [group * width, _MASKED], of which a pass takes the end

    def adopt(self, weights: DecoderWeights) -> None:
        """See `Decoder.adopt`."""
        self._weights, self._embedding = weights, weights.embedding.numpy()

    @staticmethod
    def fits(config: DecoderConfig, weights: DecoderWeights, cache: KVCache) -> bool:
        """Whether the model computes in float32 on a CPU, with rows in place and no window to look through."""
        norms = [weights.norm, *(n for layer in weights.layers for n in (layer.attention_norm, layer.mlp_norm))]
        return (
            weights.embedding.device.type == "cpu"
            and weights.embedding.dtype == torch.float32
            and cache.in_place
            and set(config.windows) == {None}
            and all(isinstance(norm, LengthNorm) and norm.scale is None for norm in norms)
        )

    @staticmethod
    def takes(spans: Sequence[Span]) -> bool:
        if len(spans) == 1:
            return spans[0].size <= WIDEST
        sizes = [span.size for span in spans]
        return sum(sizes) <= MOST and max(sizes) <= WIDEST

    def run(
        self, packed: Packed, spans: Sequence[Span], groups: Sequence[Sequence[int]] | None, asked: Sequence[int] = ()
    ) -> Computed:
        """Logits of the last `wanted` tokens of each span; keys and values of all are cached on the way.

        `groups` of spans attend together (see `AttentionMetadata`); `asked` as in `Listener.layers`.
        """
        tokens, last, told = packed.tokens, len(self._weights.layers), dict[int, Floats]()
        buffers = self._buffers.get(len(tokens))
        if buffers is None:
            memory = [part[: len(tokens)] for part in self._memory]
            buffers = self._buffers[len(tokens)] = _Buffers(self._heads, memory)
        np.take(self._embedding, tokens, axis=0, out=buffers.hidden)
        states = buffers.hidden_tensor
        if asked:
            width = states.shape[1]
            states = torch.empty(len(tokens), len(asked) * width)
            parts = states.numpy()
            told = {layer: parts[:, i * width : (i + 1) * width] for i, layer in enumerate(asked)}
        rotations, slots = self._places(spans)
        attention = self._attention(spans, groups)
        with np.errstate(over="ignore"):  # exp(-x) of a very negative gate is infinite, and its silu rightly 0
            for i, layer in enumerate(self._weights.layers):
                report_progress()
                if i in told:
                    told[i][:] = buffers.hidden
                _project(layer, buffers, rotations)
                self._pool[i][slots] = buffers.keys_values
                layer.output.add_to(buffers.hidden_tensor, attention(i, buffers.queries_tensor))
                _transform(layer, buffers)
        if last in told:
            told[last][:] = buffers.hidden
        report_progress()
        _unit(buffers, self._weights.norm)
        return self._weights.head(_last(buffers, spans, packed.wanted)), states

    def _places(self, spans: Sequence[Span]) -> tuple[npt.NDArray[np.complex64], slice | IntArray]:
        """How the tokens are rotated [N, 1, head_dim / 2], and where in the cache they go."""
        if len(spans) == 1:
            row, start, end, seen = spans[0]
            first = self._cache.first_slot(row)
            turned = slice(start, end) if seen is None else spans[0].positions
            return self._rotations[turned], slice(first + start, first + end)
        places = np.concatenate([np.arange(span.start, span.end) for span in spans])
        shifts = np.repeat([self._cache.first_slot(span.row) for span in spans], [span.size for span in spans])
        return self._rotations[positions(spans)], places + shifts

    def _attention(
        self, spans: Sequence[Span], groups: Sequence[Sequence[int]] | None
    ) -> _Row | _Rows | InPlaceAttention:
        if groups is not None:
            tokens = sum(span.size for span in spans)
            return InPlaceAttention(
                self._cache, AttentionMetadata(self._heads, spans, None, groups), self._memory[2][:tokens]
            )
        first, rows = 0, []
        for span in spans:
            queries = self._queries.get((first, span.size))
            if queries is None:
                queries = self._queries[first, span.size] = self._queries_of(first, span.size)
            mask = None if span.size == 1 and span.seen is None else self._mask(span)
            rows.append(_Row(self._heads, *queries, mask, *self._cache.views(span.row, 0, span.end)))
            first += span.size
        return rows[0] if len(rows) == 1 else _Rows(rows)

    def _queries_of(self, first: int, size: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        packed = self._memory[2][first : first + size, : self._heads.query * self._heads.dim].unsqueeze(0)
        return packed, fold(packed, self._heads) if size == 1 or self._heads.group == 1 else None

    def _mask(self, span: Span) -> torch.Tensor:
        if span.seen is not None:
            return additive(span.visible(0, None), self._heads.group)
        if span.end > _MASKED:
            return causal_mask(span.size, span.end, self._heads.group)
        mask = self._masks.get(span.size)
        if mask is None:
            mask = self._masks[span.size] = causal_mask(span.size, _MASKED, self._heads.group)
        return mask[:, -span.end :]


class _Buffers:
    """Memory for passes of one width, as numpy and torch see it."""

    def __init__(self, heads: Heads, memory: Sequence[torch.Tensor]) -> None:
        hidden, normed, qkv, gate_up, active = memory
        width, mlp = active.shape
        self.hidden: Floats = hidden.numpy()
        self.hidden_tensor = hidden
        self.lengths: Floats = np.empty(width, dtype=np.float32)
        self.normed: Floats = normed.numpy()
        self.normed_tensor = normed
        self.qkv_tensor = qkv
        self.queries_tensor = qkv[:, : heads.query * heads.dim]
        self.keys_values: Floats = qkv[:, heads.query * heads.dim :].numpy()
        # Queries and keys [n, heads + kv_heads, dim], and the same as the complex numbers that RoPE turns.
        self.heads_tensor = qkv.as_strided((width, heads.query + heads.kv, heads.dim), (qkv.shape[1], heads.dim, 1))
        self.pairs: npt.NDArray[np.complex64] = self.heads_tensor.view(torch.complex64).numpy()
        self.gate_up_tensor = gate_up
        self.gate: Floats = gate_up[:, :mlp].numpy()
        self.up: Floats = gate_up[:, mlp:].numpy()
        self.active: Floats = active.numpy()
        self.active_tensor = active


class _Row(NamedTuple):
    """The queries of one row [1, n, heads * dim], and keys and values of each layer [1, kv, cached, dim]."""

    heads: Heads
    packed: torch.Tensor
    folded: torch.Tensor | None  # the queries as attention takes them, where that is a view
    mask: torch.Tensor | None
    keys: Sequence[torch.Tensor]
    values: Sequence[torch.Tensor]

    def __call__(self, layer: int, _: torch.Tensor) -> torch.Tensor:
        heads, packed, folded, mask, keys, values = self
        if folded is None:
            out = F.scaled_dot_product_attention(fold(packed, heads), keys[layer], values[layer], attn_mask=mask)
            return unfold(out, heads)[0]
        out = F.scaled_dot_product_attention(folded, keys[layer], values[layer], attn_mask=mask)
        size = packed.shape[1]
        return out.reshape(1, -1) if size == 1 else out.transpose(1, 2).reshape(size, -1)


class _Rows(NamedTuple):
    """A few rows, one after another."""

    rows: Sequence[_Row]

    def __call__(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        return torch.cat([row(layer, queries) for row in self.rows])


def _project(layer: LayerWeights, buffers: _Buffers, rotations: npt.NDArray[np.complex64]) -> None:
    """Queries, keys and values of the hidden states; the first two normalised and rotated."""
    _unit(buffers, layer.attention_norm)
    layer.qkv(buffers.normed_tensor, out=buffers.qkv_tensor)
    if layer.qk_norm is not None:
        buffers.heads_tensor.copy_(layer.qk_norm(buffers.heads_tensor))
    np.multiply(buffers.pairs, rotations, out=buffers.pairs)


def _transform(layer: LayerWeights, buffers: _Buffers) -> None:
    _unit(buffers, layer.mlp_norm)
    layer.gate_up(buffers.normed_tensor, out=buffers.gate_up_tensor)
    active = np.exp(-buffers.gate)
    active += 1.0
    np.divide(buffers.gate, active, out=active)
    np.multiply(active, buffers.up, out=buffers.active)
    layer.down.add_to(buffers.hidden_tensor, buffers.active_tensor)


def _last(buffers: _Buffers, spans: Sequence[Span], wanted: IntArray) -> torch.Tensor:
    """Normalised states of the last `wanted` tokens of each span."""
    if len(spans) == 1:
        return buffers.normed_tensor[len(buffers.normed) - int(wanted[0]) :]
    if wanted.sum() == len(buffers.normed):
        return buffers.normed_tensor
    return torch.from_numpy(buffers.normed[last_places(spans, wanted.tolist())])


def _unit(buffers: _Buffers, norm: object) -> None:
    """`LengthNorm` of the hidden states, by numpy."""
    assert isinstance(norm, LengthNorm)
    x, lengths = buffers.hidden, buffers.lengths
    if len(x) == 1:
        row = x[0]
        np.multiply(x, 1.0 / math.sqrt(float(row @ row) + norm.square), out=buffers.normed)
        return
    np.vecdot(x, x, out=lengths)
    np.add(lengths, norm.square, out=lengths)
    np.sqrt(lengths, out=lengths)
    np.divide(x, lengths[:, None], out=buffers.normed)
