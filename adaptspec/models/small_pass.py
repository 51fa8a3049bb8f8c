"""A forward pass over a few tokens of a few rows on a CPU: products by torch, everything small by numpy.

Where a pass takes a millisecond, most of it is what each operation costs beside its arithmetic: 3 to 6 us in torch,
under 1 us in numpy. Both work on the same memory here. Knows one decoder's weights; the plain form is in `Decoder`, and
a test holds the two equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from adaptspec.models.attention import Heads, Span, fold, last_places, positions, unfold
from adaptspec.models.config import DecoderConfig
from adaptspec.models.kv_cache import KVCache
from adaptspec.models.layers import UnitLength
from adaptspec.models.weights import DecoderWeights, LayerWeights
from adaptspec.types import IntArray

Floats = npt.NDArray[np.float32]

_MASKED = 2048  # positions; what a mask takes to make is nothing beside attending to more
# Tokens of one row, and of all rows; beyond, arithmetic outweighs overhead and torch's threads are worth theirs.
WIDEST, MOST = 16, 128


class SmallPass:
    """Passes of up to `MOST` tokens, `WIDEST` of each row, in float32 on a CPU."""

    def __init__(self, config: DecoderConfig, weights: DecoderWeights, cache: KVCache, rotations: torch.Tensor) -> None:
        """`rotations` [context, 1, head_dim / 2]. `fits` says whether a model can be run like this."""
        self._weights, self._cache = weights, cache
        self._heads = Heads(config.heads, config.kv_heads, config.head_dim)
        self._embedding: Floats = weights.embedding.numpy()
        self._rotations: npt.NDArray[np.complex64] = rotations.numpy()
        self._pool: list[Floats] = [layer.numpy() for layer in cache.pool]
        self._space = _Space(config, self._heads)
        self._rooms: dict[int, _Room] = {}
        self._masks: dict[int, torch.Tensor] = {}  # by width [group * width, _MASKED], of which a pass takes the end

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

    @staticmethod
    def takes(spans: Sequence[Span]) -> bool:
        """Whether a pass is small enough."""
        if len(spans) == 1:
            return spans[0].size <= WIDEST
        sizes = [span.size for span in spans]
        return sum(sizes) <= MOST and max(sizes) <= WIDEST

    def run(self, tokens: IntArray, spans: Sequence[Span], wanted: IntArray) -> torch.Tensor:
        """Logits of the last `wanted` tokens of each span; keys and values of all are cached on the way."""
        room = self._rooms.get(len(tokens))
        if room is None:
            room = self._rooms[len(tokens)] = _Room.of(self._space, len(tokens))
        np.take(self._embedding, tokens, axis=0, out=room.hidden)
        rotations, slots = self._places(spans)
        rows = self._rows(spans)
        with np.errstate(over="ignore"):  # exp(-x) of a very negative gate is infinite, and its silu rightly 0
            for i, layer in enumerate(self._weights.layers):
                _project(layer, room, rotations)
                self._pool[i][slots] = room.keys_values
                attended = rows[0].attend(i) if len(rows) == 1 else torch.cat([row.attend(i) for row in rows])
                _add(room, attended, layer.output, layer.output_bias)
                _transform(layer, room)
        _unit(room, self._weights.norm)
        return torch.mm(_last(room, spans, wanted), self._weights.head)

    def _places(self, spans: Sequence[Span]) -> tuple[npt.NDArray[np.complex64], slice | IntArray]:
        """How the tokens are rotated [N, 1, head_dim / 2], and where in the cache they go."""
        if len(spans) == 1:
            row, start, end = spans[0]
            first = self._cache.first_slot(row)
            return self._rotations[start:end], slice(first + start, first + end)
        places = positions(spans)
        shifts = np.repeat([self._cache.first_slot(span.row) for span in spans], [span.size for span in spans])
        return self._rotations[places], places + shifts

    def _rows(self, spans: Sequence[Span]) -> list[_Row]:
        rows, first = [], 0
        for span in spans:
            asking = self._space.asking(first, span.size)
            mask = None if span.size == 1 else self._mask(span)
            rows.append(_Row(self._heads, asking, mask, *self._cache.views(span.row, 0, span.end)))
            first += span.size
        return rows

    def _mask(self, span: Span) -> torch.Tensor:
        if span.end > _MASKED:
            return _hiding(span.size, span.end, self._heads.group)
        mask = self._masks.get(span.size)
        if mask is None:
            mask = self._masks[span.size] = _hiding(span.size, _MASKED, self._heads.group)
        return mask[:, -span.end :]


class _Row:
    """What one row's queries attend to, layer by layer: keys and values [1, kv, cached, dim]."""

    def __init__(
        self,
        heads: Heads,
        asking: _Asking,
        mask: torch.Tensor | None,
        keys: Sequence[torch.Tensor],
        values: Sequence[torch.Tensor],
    ) -> None:
        self._heads, self._asking, self._mask, self._keys, self._values = heads, asking, mask, keys, values

    def attend(self, layer: int) -> torch.Tensor:
        """What the queries gather [n, heads * dim]."""
        asking, mask, keys, values = self._asking, self._mask, self._keys[layer], self._values[layer]
        if asking.folded is None:
            queries = fold(asking.queries, self._heads)
            return unfold(F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask), self._heads)[0]
        out = F.scaled_dot_product_attention(asking.folded, keys, values, attn_mask=mask)
        return out.reshape(1, -1) if mask is None else out.transpose(1, 2).reshape(asking.queries.shape[1], -1)


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


def _last(room: _Room, spans: Sequence[Span], wanted: IntArray) -> torch.Tensor:
    """Normalised states of the last `wanted` tokens of each span."""
    if len(spans) == 1:
        return room.normed_tensor[len(room.normed) - int(wanted[0]) :]
    if wanted.sum() == len(room.normed):
        return room.normed_tensor
    return torch.from_numpy(room.normed[last_places(spans, wanted.tolist())])


class _Space:
    """Memory for the widest pass; a narrower one takes the beginning of each part."""

    def __init__(self, config: DecoderConfig, heads: Heads) -> None:
        self.queries, kv = heads.query * heads.dim, heads.kv * heads.dim
        self.heads, self.mlp = heads, config.mlp
        self.hidden, self.normed = torch.empty(MOST, config.hidden), torch.empty(MOST, config.hidden)
        self.qkv, self.gate_up = torch.empty(MOST, self.queries + 2 * kv), torch.empty(MOST, 2 * config.mlp)
        self.active = torch.empty(MOST, config.mlp)
        self.lengths: Floats = np.empty(MOST, dtype=np.float32)
        self._asking: dict[tuple[int, int], _Asking] = {}

    def asking(self, first: int, size: int) -> _Asking:
        """Of the row whose tokens begin at `first`."""
        known = self._asking.get((first, size))
        if known is None:
            queries = self.qkv[first : first + size, : self.queries].unsqueeze(0)
            folded = fold(queries, self.heads) if size == 1 or self.heads.group == 1 else None
            known = self._asking[first, size] = _Asking(queries, folded)
        return known


@dataclass(frozen=True)
class _Asking:
    """The queries of one row [1, n, heads * dim], and as attention takes them, where that is a view."""

    queries: torch.Tensor
    folded: torch.Tensor | None


@dataclass(frozen=True)
class _Room:
    """Memory for passes of one width, as numpy and torch see it."""

    hidden: Floats
    hidden_tensor: torch.Tensor
    lengths: Floats
    normed: Floats
    normed_tensor: torch.Tensor
    qkv_tensor: torch.Tensor
    keys_values: Floats
    heads_tensor: torch.Tensor  # queries and keys [n, heads + kv_heads, dim]
    pairs: npt.NDArray[np.complex64]  # the same, as RoPE turns them
    gate_up_tensor: torch.Tensor
    gate: Floats
    up: Floats
    active: Floats
    active_tensor: torch.Tensor

    @staticmethod
    def of(space: _Space, width: int) -> _Room:
        hidden, normed, active = space.hidden[:width], space.normed[:width], space.active[:width]
        qkv, gate_up = space.qkv[:width], space.gate_up[:width]
        heads = space.heads
        turning = qkv.as_strided((width, heads.query + heads.kv, heads.dim), (qkv.shape[1], heads.dim, 1))
        both = gate_up.numpy()
        return _Room(
            hidden=hidden.numpy(),
            hidden_tensor=hidden,
            lengths=space.lengths[:width],
            normed=normed.numpy(),
            normed_tensor=normed,
            qkv_tensor=qkv,
            keys_values=qkv[:, space.queries :].numpy(),
            heads_tensor=turning,
            pairs=turning.view(torch.complex64).numpy(),
            gate_up_tensor=gate_up,
            gate=both[:, : space.mlp],
            up=both[:, space.mlp :],
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
