"""Heads that run token by token: EAGLE-3 (2503.01840), EAGLE-3.1, and multi-token prediction.

Token i is read with the state before it: the target's of token i - 1 if it is known, else the head's own. So the first
token of a text, which no state comes before, takes no place in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from adaptspec.models.async_runner import drawn_tokens, to_device
from adaptspec.models.attention import Span
from adaptspec.models.config import DecoderConfig
from adaptspec.models.decoder import PassPlan
from adaptspec.models.heads.head_runner import Fusion, HeadRow, HeadRunner, HeadSpec, RowInput
from adaptspec.models.kv_cache import KVCache
from adaptspec.models.layers import Embedding, Linear, RmsNorm, rotations
from adaptspec.models.runner import ModelInfo
from adaptspec.models.weights import LayerWeights
from adaptspec.progress import report_progress


@dataclass(frozen=True)
class RecurrentWeights:
    """The first of `layers` takes token_norm(embedding) and state_norm(state), side by side or through `entry`."""

    embedding: Embedding
    fusion: Fusion
    token_norm: RmsNorm
    state_norm: RmsNorm
    entry: Linear | None  # [2 * hidden] to [hidden]; the first layer is then like any other
    layers: tuple[LayerWeights, ...]
    norm: RmsNorm
    lm_head: Linear
    norm_before_residual: bool = False  # the first layer adds to the normed state, not to the state
    norm_output: bool = False  # the state that is fed back is the normed one (EAGLE-3.1, MTP)


class RecurrentHead(HeadRunner):
    """A head that runs token by token, with its cache."""

    shift = 1

    def __init__(
        self, info: ModelInfo, spec: HeadSpec, config: DecoderConfig, weights: RecurrentWeights, cache: KVCache
    ) -> None:
        super().__init__(info, spec, cache)
        self._config, self._weights = config, weights
        table = rotations(config.rope, config.head_dim, info.context)
        self._rotations = table.to(self.device).unsqueeze(1)

    def _run(self, inputs: Sequence[RowInput]) -> torch.Tensor:
        weights = self._weights
        spans, tokens, states, wanted = [], [], [], []
        for one in inputs:
            skipped = int(not one.start)
            if len(one.tokens) > skipped:
                spans.append(Span(one.row, one.start + skipped - self.shift, one.end - self.shift, one.seen))
                self._cache.require(one.row, spans[-1].end)
                tokens.append(one.tokens[skipped:])
                states.append(self._states(one.state, one.before[skipped:]))
                wanted.append(one.wanted)
        if not spans:
            return weights.lm_head.logits(
                torch.empty(0, self._config.hidden, dtype=self.spec.dtype, device=self.device)
            )
        given = np.concatenate(tokens)
        ids = to_device(given, self.device)
        if given[0] < 0:
            ids = drawn_tokens(ids, self.drawn)
        hidden = self._pass(ids, torch.cat(states), spans, wanted)
        normed = weights.norm(hidden)
        fed_back = torch.split(normed if weights.norm_output else hidden, wanted)
        for span, part in zip(spans, fed_back, strict=True):
            self._cache.set_length(span.row, span.end)
            end = span.end + self.shift
            self._rows[span.row].drafted.update(zip(range(end - len(part), end), part, strict=True))
        return weights.lm_head.logits(normed)

    def _states(self, row: HeadRow, before: Sequence[int]) -> torch.Tensor:
        """States [n, hidden] of the tokens at these positions, which ascend but for the head's own."""
        known = [position for position in before if position < row.end or not row.end]
        own = [row.drafted[position] for position in before[len(known) :]]
        if not known:
            return torch.stack(own)
        if row.end:
            row.confirmed = max(row.confirmed, known[-1] + 2)
        fused = self._weights.fusion(self._target_states(row, known))
        return torch.cat((fused, torch.stack(own))) if own else fused

    def _pass(self, tokens: torch.Tensor, states: torch.Tensor, spans: list[Span], wanted: list[int]) -> torch.Tensor:
        """States behind the last layer, of the wanted tokens."""
        weights = self._weights
        plan = PassPlan(self._config, self._cache, spans, self._rotations, states)
        state = weights.state_norm(states)
        entering = torch.cat((weights.token_norm(weights.embedding(tokens)), state), 1)
        if weights.entry is None:
            hidden = state if weights.norm_before_residual else states
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
