"""A forward pass over a few tokens of one row on a CPU: products by torch, everything small by numpy.

Where a pass takes a millisecond, most of it is what each operation costs beside its arithmetic: 3 to 6 us in torch,
under 1 us in numpy. Both work on the same memory here. Knows one decoder's weights; the plain form is in `Decoder`, and
a test holds the two equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from adaptspec.models.attention import Heads, Span, fold, unfold
from adaptspec.models.config import DecoderConfig
from adaptspec.models.kv_cache import KVCache
from adaptspec.models.norms import UnitLength
from adaptspec.models.weights import DecoderWeights, LayerWeights
from adaptspec.types import IntArray

Floats = npt.NDArray[np.float32]

_MASKED = 2048  # positions; what a mask takes to make is nothing beside attending to more
WIDEST = 16  # tokens; beyond, arithmetic outweighs overhead and torch's threads are worth theirs


class SmallPass:
    """Passes of up to `WIDEST` tokens of one row, in float32 on a CPU."""

    def __init__(self, config: DecoderConfig, weights: DecoderWeights, cache: KVCache, rotations: torch.Tensor) -> None:
        """`rotations` [context, 1, head_dim / 2]. `fits` says whether a model can be run like this."""
        self._config, self._weights, self._cache = config, weights, cache
        self._heads = Heads(config.heads, config.kv_heads, config.head_dim)
        self._embedding: Floats = weights.embedding.numpy()
        self._rotations: npt.NDArray[np.complex64] = rotations.numpy()
        self._rooms: dict[int, _Room] = {}

    @staticmethod
    def fits(config: DecoderConfig, weights: DecoderWeights, cache: KVCache) -> bool:
        """Whether the model computes in float32 on a CPU, with rows in place and no window to look through."""
        plain = weights.embedding.device.type == "cpu" and weights.embedding.dtype == torch.float32
        norms = [weights.norm, *(n for layer in weights.layers for n in (layer.attention_norm, layer.mlp_norm))]
        return (
            plain
            and cache.in_place
            and set(config.windows) == {None}
            and all(isinstance(norm, UnitLength) for norm in norms)
        )

    def run(self, tokens: IntArray, span: Span, wanted: int) -> torch.Tensor:
        """Logits [wanted, vocab] of the last tokens of the span, whose keys and values are cached on the way."""
        room = self._rooms.get(span.size)
        if room is None:
            room = self._rooms[span.size] = _Room.of(self._config, self._heads, span.size)
        np.take(self._embedding, tokens, axis=0, out=room.hidden)
        rotations = self._rotations[span.start : span.end]
        mask = None if span.size == 1 else self._mask(room, span)
        caches, keys, values = self._cache.targets(*span), *self._cache.views(span.row, 0, span.end)
        with np.errstate(over="ignore"):  # exp(-x) of a very negative gate is infinite, and its silu rightly 0
            for i, layer in enumerate(self._weights.layers):
                _project(layer, room, rotations)
                caches[i].copy_(room.keys_values)
                _add(room, self._attend(room, keys[i], values[i], mask), layer.output, layer.output_bias)
                _transform(layer, room)
        _unit(room, self._weights.norm)
        return torch.mm(room.normed_tensor[span.size - wanted :], self._weights.head)

    def _mask(self, room: _Room, span: Span) -> torch.Tensor:
        if span.end <= _MASKED:
            return room.mask[:, -span.end :]
        return _hiding(span.size, span.end, self._heads.group)

    def _attend(self, room: _Room, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """What the queries gather [n, heads * dim] from keys and values [1, kv, cached, dim]."""
        if room.folded is None:
            queries = fold(room.queries, self._heads)
            return unfold(F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask), self._heads)[0]
        out = F.scaled_dot_product_attention(room.folded, keys, values, attn_mask=mask)
        return out.reshape(1, -1) if mask is None else out.transpose(1, 2).reshape(len(room.hidden), -1)


def _project(layer: LayerWeights, room: _Room, rotations: npt.NDArray[np.complex64]) -> None:
    """Queries, keys and values of the hidden states; the first two normalised and rotated."""
    _unit(room, layer.attention_norm)
    torch.mm(room.normed_tensor, layer.qkv, out=room.qkv_tensor)
    if layer.qkv_bias is not None:
        room.qkv_tensor.add_(layer.qkv_bias)
    if layer.qk_norm is not None:
        room.heads_tensor.copy_(layer.qk_norm(room.heads_tensor))
    np.multiply(room.pairs, rotations, out=room.pairs)


def _transform(layer: LayerWeights, room: _Room) -> None:
    """The gated MLP, added to the hidden states."""
    _unit(room, layer.mlp_norm)
    torch.mm(room.normed_tensor, layer.gate_up, out=room.gate_up_tensor)
    if layer.gate_up_bias is not None:
        room.gate_up_tensor.add_(layer.gate_up_bias)
    active = np.exp(-room.gate)
    active += 1.0
    np.divide(room.gate, active, out=active)
    np.multiply(active, room.up, out=room.active)
    _add(room, room.active_tensor, layer.down, layer.down_bias)


def _add(room: _Room, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    room.hidden_tensor.addmm_(x, weight)
    if bias is not None:
        room.hidden_tensor.add_(bias)


@dataclass(frozen=True)
class _Room:
    """Memory for passes of one width, as numpy and torch see it."""

    hidden: Floats
    hidden_tensor: torch.Tensor
    lengths: Floats
    normed: Floats
    normed_tensor: torch.Tensor
    qkv_tensor: torch.Tensor
    queries: torch.Tensor  # [1, n, heads * dim]
    folded: torch.Tensor | None  # the same as attention takes them, where that is a view
    mask: torch.Tensor  # [group * n, _MASKED], of which a pass takes the end
    keys_values: torch.Tensor
    heads_tensor: torch.Tensor  # queries and keys [n, heads + kv_heads, dim]
    pairs: npt.NDArray[np.complex64]  # the same, as RoPE turns them
    gate_up_tensor: torch.Tensor
    gate: Floats
    up: Floats
    active: Floats
    active_tensor: torch.Tensor

    @staticmethod
    def of(config: DecoderConfig, shape: Heads, width: int) -> _Room:
        queries, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        hidden, normed = torch.empty(width, config.hidden), torch.empty(width, config.hidden)
        qkv, gate_up = torch.empty(width, queries + 2 * kv), torch.empty(width, 2 * config.mlp)
        active = torch.empty(width, config.mlp)
        turned = config.heads + config.kv_heads
        heads = qkv.as_strided((width, turned, config.head_dim), (qkv.shape[1], config.head_dim, 1))
        both = gate_up.numpy()
        asking = qkv[:, :queries].unsqueeze(0)
        return _Room(
            hidden=hidden.numpy(),
            hidden_tensor=hidden,
            lengths=np.empty(width, dtype=np.float32),
            normed=normed.numpy(),
            normed_tensor=normed,
            qkv_tensor=qkv,
            queries=asking,
            folded=fold(asking, shape) if width == 1 or shape.group == 1 else None,
            mask=_hiding(width, _MASKED, shape.group),
            keys_values=qkv[:, queries:],
            heads_tensor=heads,
            pairs=heads.view(torch.complex64).numpy(),
            gate_up_tensor=gate_up,
            gate=both[:, : config.mlp],
            up=both[:, config.mlp :],
            active=active.numpy(),
            active_tensor=active,
        )


def _hiding(width: int, length: int, group: int) -> torch.Tensor:
    """[group * width, length] of 0 and -inf: each of the last `width` of `length` positions sees none after it."""
    return torch.full((width, length), -torch.inf).triu(length - width + 1).repeat(group, 1)


def _unit(room: _Room, norm: object) -> None:
    """`UnitLength` of the hidden states, by numpy."""
    assert isinstance(norm, UnitLength)
    x, lengths = room.hidden, room.lengths
    if len(x) == 1:
        row = x[0]
        np.multiply(x, 1.0 / math.sqrt(float(row @ row) + norm.square), out=room.normed)
        return
    np.vecdot(x, x, out=lengths)
    np.add(lengths, norm.square, out=lengths)
    np.sqrt(lengths, out=lengths)
    np.divide(x, lengths[:, None], out=room.normed)
