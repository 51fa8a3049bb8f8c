"""EAGLE-3's head (2503.01840), its successors' flags, and multi-token prediction: layers that run token by token.

Token i of a text is read with the state before it: the target's where that has read token i - 1, else what the head
itself made of it. So the first token takes no place in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from adaptspec.models.attention import Span
from adaptspec.models.config import DecoderConfig
from adaptspec.models.decoder import PassPlan
from adaptspec.models.heads.hearing import Fed, HeadRunner, picked
from adaptspec.models.kv_cache import KVCache
from adaptspec.models.layers import Linear, Norm, rotations
from adaptspec.models.runner import ModelInfo
from adaptspec.models.weights import LayerWeights
from adaptspec.progress import report_progress


@dataclass(frozen=True)
class Fusion:
    """What a head makes of F states of the target, side by side: `matrix` takes [F x target] to [hidden], if needed."""

    whole: Norm | None  # over all of them together, or
    each: Sequence[Norm]  # over each by itself, or neither
    matrix: Linear | None

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """[N, hidden] of states [N, F x target]."""
        if self.whole is not None:
            states = self.whole(states)
        if self.each:
            parts = states.chunk(len(self.each), 1)
            states = torch.cat([norm(part) for norm, part in zip(self.each, parts, strict=True)], 1)
        return states if self.matrix is None else self.matrix(states)


@dataclass(frozen=True)
class EagleWeights:
    """A head. The first of `layers` takes [norm(embedding), norm(state)] side by side, through `entry` if there is one.

    `vocabulary` int64 [n] says which of the target's tokens its own are; None: the same.
    """

    embedding: torch.Tensor  # [vocab, hidden]
    fusion: Fusion
    token_norm: Norm
    state_norm: Norm
    entry: Linear | None  # [2 x hidden] to [hidden], behind which the first layer is like any other
    layers: tuple[LayerWeights, ...]
    norm: Norm
    head: Linear
    vocabulary: torch.Tensor | None
    states: tuple[int, ...]  # see `Listener.layers`
    norm_before_residual: bool = False  # what goes past the first layer is the normed state
    norm_output: bool = False  # what it gives back as a state is normed (EAGLE-3.1)


class EagleRunner(HeadRunner):
    """A head that runs token by token, with its cache."""

    shift = 1

    def __init__(self, info: ModelInfo, config: DecoderConfig, weights: EagleWeights, cache: KVCache) -> None:
        super().__init__(info, weights.states, weights.vocabulary, cache)
        self._config, self._weights = config, weights
        table = rotations(config.rope, config.head_dim, info.context)
        self._rotations = table.to(self.device).unsqueeze(1)

    def _run(self, fed: Sequence[Fed]) -> torch.Tensor:
        weights, spans, tokens, states, wanted = self._weights, [], [], [], []
        for one in fed:
            skipped = int(not one.start)  # no state comes before the first token
            if len(one.tokens) > skipped:
                spans.append(Span(one.row, one.start + skipped - self.shift, one.end - self.shift, one.seen))
                self._cache.require(one.row, spans[-1].end)
                tokens.append(one.tokens[skipped:])
                states.append(self._states(one, one.before[skipped:]))
                wanted.append(one.wanted)
        behind = torch.empty(0, self._config.hidden, dtype=weights.embedding.dtype, device=self.device)
        if spans:
            behind = self._pass(
                torch.from_numpy(np.concatenate(tokens)).to(self.device), torch.cat(states), spans, wanted
            )
        for span in spans:
            self._cache.set_length(span.row, span.end)
        normed = weights.norm(behind)
        given = torch.tensor_split(normed if weights.norm_output else behind, np.cumsum(wanted[:-1]).tolist())
        for span, part in zip(spans, given, strict=bool(spans)):
            places = range(span.end + self.shift - len(part), span.end + self.shift)
            self._rows[span.row].own.update(zip(places, part, strict=True))
        return weights.head.logits(normed)

    def _states(self, fed: Fed, places: Sequence[int]) -> torch.Tensor:
        """States [n, hidden] behind the tokens at these places."""
        text, weights = fed.text, self._weights
        if not text.end:  # nobody's row, to be timed
            return torch.zeros(len(places), self._config.hidden, dtype=weights.embedding.dtype, device=self.device)
        own = [text.own[place] for place in places if place >= text.end]
        at = [place - text.first for place in places if place < text.end]
        if not at:
            return torch.stack(own)
        text.sure = max(text.sure, at[-1] + text.first + 2)
        fused = weights.fusion(picked(text.states, at))
        return torch.cat((fused, torch.stack(own))) if own else fused

    def _pass(self, tokens: torch.Tensor, states: torch.Tensor, spans: list[Span], wanted: list[int]) -> torch.Tensor:
        """States behind the last layer, of the wanted tokens."""
        weights = self._weights
        plan = PassPlan(self._config, self._cache, spans, self._rotations, states)
        state = weights.state_norm(states)
        entering = torch.cat((weights.token_norm(weights.embedding[tokens]), state), 1)
        if weights.entry is None:
            hidden = (state if weights.norm_before_residual else states).clone()
        else:
            hidden = weights.entry(entering)
        for i, layer in enumerate(weights.layers):
            report_progress()
            normed = entering if not i and weights.entry is None else layer.attention_norm(hidden)
            attended = plan.attend(i, layer.qkv(normed), layer.qk_norm)
            if i + 1 == len(weights.layers):
                hidden, attended = plan.pick(wanted, hidden, attended)
            hidden = layer.after_attention(hidden, attended)
        return hidden
