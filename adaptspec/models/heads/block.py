"""Heads that draft a whole block in one pass: DFlash (2602.06036), DSpark's heads on it, and P-EAGLE.

The pass runs when a text's newest token is read. Tokens that are drafted then cost no more than a look at their slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from adaptspec.models.attention import Span
from adaptspec.models.config import DecoderConfig
from adaptspec.models.heads.eagle import EagleRunner, EagleWeights, Fusion
from adaptspec.models.heads.hearing import Fed, HeadRunner, Text
from adaptspec.models.kv_cache import KVCache
from adaptspec.models.layers import Linear, Norm, rotations
from adaptspec.models.runner import ModelInfo
from adaptspec.models.weights import LayerWeights
from adaptspec.progress import report_progress


@dataclass(frozen=True)
class MarkovHead:
    """DSpark's: what the token before says of the next, in a few numbers: `before` [vocab, rank], `after` from these.

    `gate` takes [hidden + rank] to [rank], `joint` [2 x rank + hidden] to [3 x rank]; at most one of them is there.
    """

    before: torch.Tensor
    after: Linear
    gate: Linear | None = None
    joint: Linear | None = None

    def __call__(self, token: int, hidden: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What to add to the logits of a slot [n], and the next state [rank]; of the slot's `hidden` and the state."""
        told = self.before[token]
        if self.gate is not None:
            told = torch.sigmoid(self.gate(torch.cat((hidden, told))[None])[0]) * told
        elif self.joint is not None:
            kept, new, out = self.joint(torch.cat((state, told, hidden))[None])[0].chunk(3)
            kept = torch.sigmoid(kept)
            state, told = kept * state + (1.0 - kept) * torch.tanh(new), torch.tanh(out)
        return self.after(told[None])[0], state


@dataclass(frozen=True)
class Block:
    """What one pass has drafted: states behind the last norm [slots, hidden] and their logits [slots, n].

    `anchor` [hidden] is the state of the newest token where that has a slot which drafts nothing.
    """

    hidden: torch.Tensor
    logits: torch.Tensor
    anchor: torch.Tensor | None = None


@dataclass(frozen=True)
class Slot:
    """Where a drafted token stands: how many come before it in its block, and the Markov head's state there."""

    block: Block
    depth: int
    state: torch.Tensor


class BlockRunner(HeadRunner):
    """Rows of a head of one pass a draft. `slots` is how many tokens that drafts."""

    slots: int
    markov: MarkovHead | None = None

    def _run(self, fed: Sequence[Fed]) -> torch.Tensor:
        newest = [self._newest(one) for one in fed]
        blocks = self._drafted(fed, newest)
        logits = [torch.empty(0, self._outputs, device=self.device)]
        for one, place, block in zip(fed, newest, blocks, strict=True):
            own, after = one.text.own, {}
            for at, token, before in zip(range(one.start, one.end), one.tokens.tolist(), one.before, strict=True):
                if at == place and block is not None:
                    slot = Slot(block, 0, self._state(block, token))
                elif before in own:
                    slot = own[before]
                    slot = Slot(slot.block, slot.depth + 1, slot.state)
                else:
                    continue  # a part of the text that was read before
                after[at], own[at] = self._next(slot, token)
            logits += [after[at][None] for at in range(one.end - one.wanted, one.end)]
        return torch.cat(logits)

    def _next(self, slot: Slot, token: int) -> tuple[torch.Tensor, Slot]:
        """Logits [n] after a token in its slot, and the slot with what is known behind it."""
        at = min(slot.depth, len(slot.block.logits) - 1)
        if self.markov is None:
            return slot.block.logits[at], slot
        more, state = self.markov(token, slot.block.hidden[at], slot.state)
        return slot.block.logits[at] + more, Slot(slot.block, slot.depth, state)

    def _state(self, block: Block, token: int) -> torch.Tensor:  # noqa: ARG002 - for heads that have one
        """The Markov head's state before the first slot."""
        return torch.empty(0)

    def _newest(self, fed: Fed) -> int:
        """The place of the token that a draft begins behind, if it is among these; -1 if none is asked for."""
        first = fed.end - fed.wanted
        return -1 if not fed.wanted or fed.before[first - fed.start] in fed.text.own else first

    def _text_end(self, fed: Fed, newest: int) -> int:
        """Up to where these tokens are the text's, without its newest; 0 for those that were drafted behind it."""
        if newest >= 0:
            return newest
        return 0 if fed.before[0] in fed.text.own else fed.end

    @property
    def _outputs(self) -> int:
        return self.info.vocab_size if self._vocabulary is None else len(self._vocabulary)

    def _drafted(self, fed: Sequence[Fed], newest: Sequence[int]) -> list[Block | None]:
        """Read what the target has said, and draft for those whose newest token is there."""
        raise NotImplementedError


@dataclass(frozen=True)
class DFlashWeights:
    """A head whose layers see the target's states as if they were its own, and the block from both sides.

    `before_slots`: slots of a block that draft nothing, the newest token's if that is so.
    """

    embedding: torch.Tensor
    fusion: Fusion
    state_norm: Norm
    layers: tuple[LayerWeights, ...]
    norm: Norm
    head: Linear
    vocabulary: torch.Tensor | None
    states: tuple[int, ...]
    mask: torch.Tensor  # [hidden]: the embedding of what is to be drafted
    block: int
    before_slots: int
    causal: tuple[bool, ...]  # of each layer: whether slots see none after them
    from_slots: bool = False  # a window counts from each slot, to both sides, and not from where the block begins
    markov: MarkovHead | None = None


class DFlashRunner(BlockRunner):
    """DFlash with its cache of the target's states, and DSpark on top of it."""

    def __init__(self, info: ModelInfo, config: DecoderConfig, weights: DFlashWeights, cache: KVCache) -> None:
        super().__init__(info, weights.states, weights.vocabulary, cache)
        self._config, self._weights = config, weights
        self.slots, self.markov = weights.block - weights.before_slots, weights.markov
        table = rotations(config.rope, config.head_dim, info.context + weights.block)
        self._rotations = table.to(self.device).unsqueeze(1)

    def _drafted(self, fed: Sequence[Fed], newest: Sequence[int]) -> list[Block | None]:
        self._read([(one, self._text_end(one, at)) for one, at in zip(fed, newest, strict=True)])
        rows = zip(fed, newest, strict=True)
        drafting = [(one.row, at, int(one.tokens[at - one.start])) for one, at in rows if at >= 0]
        blocks = iter(self._blocks(drafting) if drafting else ())
        return [next(blocks) if at >= 0 else None for at in newest]

    def _read(self, parts: Sequence[tuple[Fed, int]]) -> None:
        """Keys and values of the target's states up to a place of each row."""
        weights, spans, states = self._weights, [], []
        for fed, end in parts:
            text, start = fed.text, fed.text.sure
            if end > start:
                self._cache.require(fed.row, end)
                spans.append(Span(fed.row, start, end))
                states.append(self._told(text, start, end))
                text.sure = end
        if not spans:
            return
        fused = weights.state_norm(weights.fusion(torch.cat(states)))
        places = np.concatenate([np.arange(span.start, span.end) for span in spans])
        slots = torch.from_numpy(np.concatenate([self._cache.slots(*span[:3]) for span in spans])).to(self.device)
        for layer, pool in zip(weights.layers, self._cache.pool, strict=True):
            pool.index_copy_(0, slots, self._projected(layer, fused, places)[1])
        for span in spans:
            self._cache.set_length(span.row, span.end)

    def _told(self, text: Text, start: int, end: int) -> torch.Tensor:
        if text.end:
            return text.states[start - text.first : end - text.first]
        width = len(self._weights.states) * self._weights.embedding.shape[1]
        return torch.zeros(end - start, width, dtype=self._weights.embedding.dtype, device=self.device)

    def _blocks(self, drafting: Sequence[tuple[int, int, int]]) -> list[Block]:
        """Of each row, the place of its newest token, and that token."""
        weights, size = self._weights, self._weights.block
        tokens = torch.tensor([token for _, _, token in drafting], device=self.device)
        hidden = weights.mask.repeat(len(drafting) * size, 1)
        hidden[::size] = weights.embedding[tokens]
        places = np.concatenate([np.arange(place, place + size) for _, place, _ in drafting])
        for i, layer in enumerate(weights.layers):
            report_progress()
            queries, keys_values = self._projected(layer, layer.attention_norm(hidden), places)
            parts = zip(
                drafting,
                queries.view(-1, size, *queries.shape[1:]),
                keys_values.view(-1, size, keys_values.shape[1]),
                strict=True,
            )
            attended = torch.cat([self._attended(i, row, place, *part) for (row, place, _), *part in parts])
            hidden = layer.after_attention(hidden, attended)
        normed = weights.norm(hidden).view(len(drafting), size, -1)
        told = normed[:, weights.before_slots :]
        logits = weights.head.logits(told.flatten(0, 1)).view(len(drafting), self.slots, -1)
        return [Block(*part) for part in zip(told, logits, normed[:, 0], strict=True)]

    def _projected(self, layer: LayerWeights, x: torch.Tensor, places: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries [n, heads, dim], and keys and values as they are cached [n, 2 x kv x dim]; at their places."""
        config, qkv = self._config, layer.qkv(x)
        heads, dim = config.heads + config.kv_heads, config.head_dim
        turned = qkv[:, : heads * dim].view(-1, heads, dim)
        if layer.qk_norm is not None:
            turned = layer.qk_norm(turned)
        rotation = self._rotations[torch.from_numpy(places).to(self.device)]
        turned = torch.view_as_real(
            torch.view_as_complex(turned.float().view(*turned.shape[:2], -1, 2)) * rotation
        ).flatten(2)
        turned = turned.to(qkv.dtype)
        keys_values = torch.cat((turned[:, config.heads :].flatten(1), qkv[:, heads * dim :]), 1)
        return turned[:, : config.heads], keys_values

    def _attended(
        self, layer: int, row: int, place: int, queries: torch.Tensor, keys_values: torch.Tensor
    ) -> torch.Tensor:
        """What a block [size, heads x dim] makes of the states before `place` and of itself."""
        config, window = self._config, self._config.windows[layer]
        first = 0 if window is None else max(0, place - window + self._weights.from_slots)
        slots = torch.from_numpy(self._cache.slots(row, first, place)).to(self.device)
        all_ = torch.cat((self._cache.pool[layer][slots], keys_values))
        keys, values = all_.view(len(all_), 2, config.kv_heads, config.head_dim).permute(1, 2, 0, 3)
        mask = self._mask(layer, place - first, len(queries))
        out = F.scaled_dot_product_attention(
            queries.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, enable_gqa=True
        )
        return out[0].transpose(0, 1).flatten(1)

    def _mask(self, layer: int, before: int, size: int) -> torch.Tensor | None:
        """Which of so many states and the slots behind them each slot sees [size, before + size]; None: all."""
        causal = self._weights.causal[layer]
        window = self._config.windows[layer] if self._weights.from_slots else None
        if not causal and window is None:
            return None
        places = torch.arange(before + size, device=self.device)
        back = places[before:, None] - places
        seen = back >= 0 if causal else torch.ones_like(back, dtype=torch.bool)
        return seen if window is None else seen & (back.abs() < window)

    def _state(self, block: Block, token: int) -> torch.Tensor:
        head = self.markov
        if head is None or head.joint is None:
            return super()._state(block, token)
        state = torch.zeros(head.before.shape[1], dtype=head.before.dtype, device=self.device)
        # A slot that drafts nothing is passed through all the same.
        return state if not self._weights.before_slots or block.anchor is None else head(token, block.anchor, state)[1]


class PEagleRunner(BlockRunner, EagleRunner):
    """P-EAGLE (2602.01469): an EAGLE head that has learned to go on behind tokens and states it does not know yet."""

    def __init__(
        self, info: ModelInfo, config: DecoderConfig, weights: EagleWeights, cache: KVCache, unknown: Unknown
    ) -> None:
        super().__init__(info, config, weights, cache)
        self.slots, self._unknown = unknown.slots, unknown

    def reserve(self, row: int, length: int) -> bool:
        # A pass drafts all slots, however few are asked for.
        return super().reserve(row, min(length + self.slots, self.begin(row) + self.info.context))

    def _drafted(self, fed: Sequence[Fed], newest: Sequence[int]) -> list[Block | None]:
        spans, tokens, states, wanted = [], [], [], []
        for one, place in zip(fed, newest, strict=True):
            end, slots = self._text_end(one, place) + (place >= 0), min(self.slots, self.info.context - place)
            more = slots - 1 if place >= 0 else 0
            own = slice(int(not one.start), end - one.start)  # no state comes before the first token
            if own.stop > own.start:
                spans.append(Span(one.row, one.start + own.start - self.shift, end - self.shift + more))
                self._cache.require(one.row, spans[-1].end)
                tokens.append(np.append(one.tokens[own], [self._unknown.token] * more))
                states += [self._states(one, one.before[own]), self._unknown.state.repeat(more, 1)]
                wanted.append(slots * (place >= 0))
        if not spans:
            return [None] * len(fed)
        ids = torch.from_numpy(np.concatenate(tokens).astype(np.int64)).to(self.device)
        normed = self._weights.norm(self._pass(ids, torch.cat(states), spans, wanted))
        logits = self._weights.head.logits(normed)
        at = np.cumsum(wanted[:-1]).tolist()
        blocks: dict[int, Block | None] = {}
        parts = zip(spans, wanted, torch.tensor_split(normed, at), torch.tensor_split(logits, at), strict=True)
        for span, count, *drafted in parts:
            self._cache.set_length(span.row, span.end - max(0, count - 1))
            blocks[span.row] = Block(*drafted) if count else None
        return [blocks.get(one.row) for one in fed]


@dataclass(frozen=True)
class Unknown:
    """What stands for tokens that are to be drafted: a token, a state [1, hidden], and how many are drafted in all."""

    token: int
    state: torch.Tensor
    slots: int


@dataclass(frozen=True)
class MedusaWeights:
    """Heads (2401.10774) that each guess one token further from the target's last state, whatever comes in between."""

    hidden: int
    norm: Norm  # the target's last
    layers: tuple[tuple[Linear, ...], ...]  # of each head, [hidden] to [hidden]
    heads: tuple[Linear, ...]
    vocabulary: torch.Tensor | None
    states: tuple[int, ...]


class MedusaRunner(BlockRunner):
    """Medusa: nothing to read, and nothing to keep but the last state."""

    shift = 1

    def __init__(self, info: ModelInfo, weights: MedusaWeights, cache: KVCache) -> None:
        super().__init__(info, weights.states, weights.vocabulary, cache)
        self._weights, self.slots = weights, len(weights.heads)

    def _drafted(self, fed: Sequence[Fed], newest: Sequence[int]) -> list[Block | None]:
        return [self._guess(one, place) for one, place in zip(fed, newest, strict=True)]

    def _guess(self, fed: Fed, place: int) -> Block | None:
        text, weights = fed.text, self._weights
        text.sure = max(text.sure, self._text_end(fed, place) + (place >= 0))
        if place < 0:
            return None
        nobody = torch.zeros(weights.hidden, dtype=self._cache.pool[0].dtype, device=self.device)  # whose row is timed
        hidden = weights.norm((text.states[place - 1 - text.first] if text.end else nobody)[None])
        behind = []
        for layers in weights.layers:
            x = hidden
            for layer in layers:
                x = x + F.silu(layer(x))
            behind.append(x)
        logits = [head.logits(x) for head, x in zip(weights.heads, behind, strict=True)]
        return Block(torch.cat(behind), torch.cat(logits))
