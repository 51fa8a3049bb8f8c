"""Heads that draft a whole block in one pass: DFlash (2602.06036) and Medusa (2401.10774).

The pass runs when a text's newest token is read. Each drafted token is then looked up in its slot of the block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import starmap

import numpy as np
import torch
import torch.nn.functional as F

from adaptspec.arrays import IntArray
from adaptspec.models.attention import Span
from adaptspec.models.config import DecoderConfig
from adaptspec.models.heads.head_runner import Fusion, HeadRow, HeadRunner, HeadSpec, RowInput
from adaptspec.models.kv_cache import KVCache
from adaptspec.models.layers import Embedding, Linear, RmsNorm, rotations
from adaptspec.models.runner import ModelInfo
from adaptspec.models.weights import LayerWeights
from adaptspec.progress import report_progress


@dataclass(frozen=True)
class Slot:
    """Where the token after one comes from: a block's logits [slots, n], and the number of tokens drafted before it."""

    block: torch.Tensor
    depth: int

    @property
    def logits(self) -> torch.Tensor:
        return self.block[min(self.depth, len(self.block) - 1)]


class BlockHead(HeadRunner):
    """Drafts up to `slots` tokens in one pass; what is read behind the newest token is looked up in their block."""

    slots: int

    def _run(self, inputs: Sequence[RowInput]) -> torch.Tensor:
        newest = [_newest(one) for one in inputs]
        blocks = self._blocks(inputs, newest)
        size = self.info.vocab_size if self.spec.vocabulary is None else len(self.spec.vocabulary)
        logits = [torch.empty(0, size, device=self.device)]
        for one, first, block in zip(inputs, newest, blocks, strict=True):
            drafted = one.state.drafted
            for position, before in zip(range(one.start, one.end), one.before, strict=True):
                if position == first and block is not None:
                    drafted[position] = Slot(block, 0)
                elif before in drafted:
                    drafted[position] = Slot(drafted[before].block, drafted[before].depth + 1)
            logits += [drafted[position].logits[None] for position in range(one.end - one.wanted, one.end)]
        return torch.cat(logits)

    def _blocks(self, inputs: Sequence[RowInput], newest: Sequence[int | None]) -> list[torch.Tensor | None]:
        """Read the target's states, and draft logits [slots, n] for the rows whose newest token is among the inputs."""
        raise NotImplementedError


def _newest(one: RowInput) -> int | None:
    """The position of the newest token of the text, if a draft begins behind it."""
    first = one.end - one.wanted
    return None if not one.wanted or one.before[first - one.start] in one.state.drafted else first


def _text_end(one: RowInput, newest: int | None) -> int:
    """How far the inputs are text without its newest token; 0 for drafted tokens."""
    if newest is not None:
        return newest
    return 0 if one.before[0] in one.state.drafted else one.end


@dataclass(frozen=True)
class DFlashWeights:
    """Layers in which a block attends to the target's states and to itself."""

    embedding: Embedding
    fusion: Fusion
    state_norm: RmsNorm
    layers: tuple[LayerWeights, ...]
    norm: RmsNorm
    lm_head: Linear
    mask: torch.Tensor  # [hidden]: stands for the embedding of a token that is to be drafted
    block: int  # tokens of a pass: the newest one, and masks
    first_slot: int  # 1 if the slot of the newest token drafts nothing
    causal: tuple[bool, ...]  # by layer: whether a slot attends to none after it
    slot_windows: bool  # windows count from each slot, to both sides, and not from the start of the block


class DFlashHead(BlockHead):
    """DFlash with its cache, which holds what its layers make of the target's states."""

    def __init__(
        self, info: ModelInfo, spec: HeadSpec, config: DecoderConfig, weights: DFlashWeights, cache: KVCache
    ) -> None:
        super().__init__(info, spec, cache)
        self._config, self._weights = config, weights
        self.slots = weights.block - weights.first_slot
        table = rotations(config.rope, config.head_dim, info.context + weights.block)
        self._rotations = table.to(self.device).unsqueeze(1)

    def _blocks(self, inputs: Sequence[RowInput], newest: Sequence[int | None]) -> list[torch.Tensor | None]:
        self._read([(one, _text_end(one, first)) for one, first in zip(inputs, newest, strict=True)])
        rows, positions, tokens = list[int](), list[int](), list[int]()
        for one, first in zip(inputs, newest, strict=True):
            if first is not None:
                rows.append(one.row)
                positions.append(first)
                tokens.append(int(one.tokens[first - one.start]))
        blocks = iter(self._draft(rows, positions, tokens) if rows else ())
        return [None if first is None else next(blocks) for first in newest]

    def _read(self, parts: Sequence[tuple[RowInput, int]]) -> None:
        """Cache keys and values of the target's states of each row, up to a position."""
        weights, spans, states = self._weights, list[Span](), list[torch.Tensor]()
        for one, end in parts:
            row, start = one.state, one.state.confirmed
            if end > start:
                self._cache.require(one.row, end)
                spans.append(Span(one.row, start, end))
                states.append(self._target_states(row, range(start, end)))
                row.confirmed = end
        if not spans:
            return
        fused = weights.state_norm(weights.fusion(torch.cat(states)))
        positions = np.concatenate([span.positions for span in spans])
        slots = torch.from_numpy(np.concatenate([self._cache.slots(*span[:3]) for span in spans])).to(self.device)
        for layer, pool in zip(weights.layers, self._cache.pool, strict=True):
            pool.index_copy_(0, slots, self._projected(layer, fused, positions)[1])
        for span in spans:
            self._cache.set_length(span.row, span.end)

    def _draft(self, rows: Sequence[int], newest: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        """Logits [B, slots, n] of blocks behind the newest tokens, at positions `newest`."""
        weights, size = self._weights, self._weights.block
        hidden = weights.mask.repeat(len(rows) * size, 1)
        hidden[::size] = weights.embedding(torch.tensor(tokens, device=self.device))
        positions = np.concatenate([np.arange(position, position + size) for position in newest])
        for i, layer in enumerate(weights.layers):
            report_progress()
            queries, keys_values = self._projected(layer, layer.attention_norm(hidden), positions)
            parts = zip(torch.split(queries, size), torch.split(keys_values, size), strict=True)
            blocks = ((i, *where, *part) for where, part in zip(zip(rows, newest, strict=True), parts, strict=True))
            hidden = layer.after_attention(hidden, torch.cat(list(starmap(self._attended, blocks))))
        normed = weights.norm(hidden).view(len(rows), size, -1)[:, weights.first_slot :]
        return weights.lm_head.logits(normed.flatten(0, 1)).view(len(rows), self.slots, -1)

    def _projected(
        self, layer: LayerWeights, hidden: torch.Tensor, positions: IntArray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated queries [n, heads, dim], and keys and values as they are cached [n, 2 * kv * dim]."""
        config, qkv = self._config, layer.qkv(hidden)
        heads, dim = config.heads + config.kv_heads, config.head_dim
        turned = qkv[:, : heads * dim].view(-1, heads, dim)
        if layer.qk_norm is not None:
            turned = layer.qk_norm(turned)
        pairs = torch.view_as_complex(turned.float().reshape(*turned.shape[:2], -1, 2))
        rotated = pairs * self._rotations[torch.from_numpy(positions).to(self.device)]
        turned = torch.view_as_real(rotated).flatten(2).to(qkv.dtype)
        keys_values = torch.cat((turned[:, config.heads :].flatten(1), qkv[:, heads * dim :]), 1)
        return turned[:, : config.heads], keys_values

    def _attended(
        self, layer: int, row: int, newest: int, queries: torch.Tensor, keys_values: torch.Tensor
    ) -> torch.Tensor:
        """Attention [size, heads * dim] of a block to the states before position `newest` and to itself."""
        config, window = self._config, self._config.windows[layer]
        first = 0 if window is None else max(0, newest - window + self._weights.slot_windows)
        slots = torch.from_numpy(self._cache.slots(row, first, newest)).to(self.device)
        both = torch.cat((self._cache.pool[layer].index_select(0, slots), keys_values))
        keys, values = both.view(len(both), 2, config.kv_heads, config.head_dim).permute(1, 2, 0, 3)
        mask = self._mask(layer, newest - first, len(queries))
        out = F.scaled_dot_product_attention(
            queries.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, enable_gqa=True
        )
        return out[0].transpose(0, 1).flatten(1)

    def _mask(self, layer: int, before: int, size: int) -> torch.Tensor | None:
        """What each slot attends to [size, before + size], of so many states and the slots; None: everything."""
        causal = self._weights.causal[layer]
        window = self._config.windows[layer] if self._weights.slot_windows else None
        if not causal and window is None:
            return None
        positions = torch.arange(before + size, device=self.device)
        back = positions[before:, None] - positions
        seen = back >= 0 if causal else torch.ones_like(back, dtype=torch.bool)
        return seen if window is None else seen & (back.abs() < window)


@dataclass(frozen=True)
class MedusaWeights:
    """Heads that each predict one token further from the target's last state, whatever comes in between."""

    norm: Callable[[torch.Tensor], torch.Tensor]  # the target's final norm
    layers: tuple[tuple[Linear, ...], ...]  # of each head, [hidden] to [hidden]
    lm_heads: tuple[Linear, ...]


class MedusaHead(BlockHead):
    """Medusa: it caches nothing, and reads the last state only."""

    shift = 1

    def __init__(self, info: ModelInfo, spec: HeadSpec, weights: MedusaWeights, cache: KVCache) -> None:
        super().__init__(info, spec, cache)
        self._weights, self.slots = weights, len(weights.lm_heads)

    def _blocks(self, inputs: Sequence[RowInput], newest: Sequence[int | None]) -> list[torch.Tensor | None]:
        for one, first in zip(inputs, newest, strict=True):
            end = _text_end(one, first) + (first is not None)
            one.state.confirmed = max(one.state.confirmed, end)
        rows = [(one.state, first) for one, first in zip(inputs, newest, strict=True)]
        return [None if first is None else self._draft(row, first) for row, first in rows]

    def _draft(self, row: HeadRow, newest: int) -> torch.Tensor:
        """Logits [slots, n] behind the newest token, at this position."""
        weights = self._weights
        last = weights.norm(self._target_states(row, [newest - 1]))
        logits = []
        for layers, lm_head in zip(weights.layers, weights.lm_heads, strict=True):
            hidden = last
            for layer in layers:
                hidden = hidden + F.silu(layer(hidden))
            logits.append(lm_head.logits(hidden))
        return torch.cat(logits)
