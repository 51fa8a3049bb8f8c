"""EAGLE-3, DFlash and Medusa heads as modules to train, over whole texts at once, with the names of their checkpoints.

`adaptspec/models/heads` has the heads that draft, with caches and packed rows. Tests hold the two equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

_HIDDEN = -1e30  # added to the scores of positions that must not be attended to


@dataclass(frozen=True)
class FrozenParts:
    """Tensors of the target that a head uses as they are: `embedding` and `head` [vocab, hidden], the last `norm`."""

    embedding: torch.Tensor
    head: torch.Tensor
    norm: torch.Tensor

    @classmethod
    def of(cls, target: Any) -> FrozenParts:
        """The tensors of a model of transformers."""
        embedding, head, norm = target.get_input_embeddings(), target.get_output_embeddings(), target.model.norm
        return cls(embedding.weight.detach(), head.weight.detach(), norm.weight.detach())


class TrainedHead(nn.Module):
    """Reads texts with the target's hidden states, and drafts `depth` tokens from some of their positions.

    `states` are the layers whose states it reads, as transformers numbers `hidden_states` (the last is normalised).
    """

    def __init__(self, frozen: FrozenParts, depth: int, states: Sequence[int]) -> None:
        super().__init__()
        self.depth, self.states = depth, tuple(states)
        self._frozen = (frozen,)  # in a tuple, so that it is no part of this module's parameters
        self.vocabulary: torch.Tensor | None = None  # [n] tokens that it drafts; None: all, by the target's head
        self.lm_head: nn.Linear | None = None

    def draft_only(self, vocabulary: torch.Tensor) -> None:
        """Restrict drafts to these tokens [n], with an output matrix for them. For heads that share the target's."""
        self.vocabulary, self.lm_head = vocabulary, _linear(self._frozen[0].head[vocabulary])

    def forward(self, states: torch.Tensor, ids: torch.Tensor, positions: torch.Tensor) -> list[torch.Tensor]:
        """Logits [B, P, n] of each depth: at depth j from position i they predict token i + 2 + j.

        `states` [B, T, states x hidden] belong to the first T of the tokens [B, T + depth]; `positions` [P] are below
        T. Tokens of lower depths are those of the text.
        """
        raise NotImplementedError

    def training_positions(self, ids: torch.Tensor) -> torch.Tensor:
        """The positions [P] that a step on these tokens trains on."""
        return torch.arange(ids.shape[1] - self.depth, device=ids.device)

    def _embedded(self, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, self._frozen[0].embedding)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._frozen[0].head if self.lm_head is None else self.lm_head.weight)


@torch.no_grad()
def target_states(teacher: Any, ids: torch.Tensor, head: TrainedHead) -> tuple[torch.Tensor, torch.Tensor]:
    """The target's states that a head reads [B, N, states x hidden], and the target's logits [B, N, n]."""
    output = teacher(ids, output_hidden_states=True, use_cache=False)
    logits = output.logits if head.vocabulary is None else output.logits[..., head.vocabulary]
    return torch.cat([output.hidden_states[i] for i in head.states], -1), logits


class HeadAttention(nn.Module):
    """The matrices of an attention with inputs of `width`; `normed`: queries and keys are normalised, as in Qwen 3."""

    def __init__(self, config: LlamaConfig, width: int, *, normed: bool) -> None:
        super().__init__()
        self.dim = dim = int(config.head_dim or config.hidden_size // config.num_attention_heads)
        kv_heads = int(config.num_key_value_heads or config.num_attention_heads)
        self.groups = config.num_attention_heads // kv_heads
        self.q_proj = nn.Linear(width, config.num_attention_heads * dim, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * dim, config.hidden_size, bias=False)
        self.q_norm = LlamaRMSNorm(dim, config.rms_norm_eps) if normed else None
        self.k_norm = LlamaRMSNorm(dim, config.rms_norm_eps) if normed else None
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries (scaled), keys and values [B, heads, N, dim] of [B, N, width] at positions [N]."""
        queries, keys = (
            _split_heads(self.q_proj(x), self.dim, self.q_norm),
            _split_heads(self.k_proj(x), self.dim, self.k_norm),
        )
        queries, keys = apply_rotary_pos_emb(queries, keys, *self.rotary(x, at[None]))
        values = _split_heads(self.v_proj(x), self.dim)
        return (
            queries * self.dim**-0.5,
            keys.repeat_interleave(self.groups, 1),
            values.repeat_interleave(self.groups, 1),
        )


class HeadLayer(nn.Module):
    """A decoder layer around such an attention. The layer of an EAGLE head reads a token and a state, concatenated."""

    def __init__(self, config: LlamaConfig, *, eagle: bool) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = HeadAttention(config, 2 * size if eagle else size, normed=not eagle)
        self.mlp = LlamaMLP(config)  # type: ignore[no-untyped-call]
        self.input_layernorm, self.post_attention_layernorm = LlamaRMSNorm(size, eps), LlamaRMSNorm(size, eps)
        if eagle:
            self.hidden_norm = LlamaRMSNorm(size, eps)

    def after(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The output of the layer [B, N, hidden] for its input and the attention's output [B, heads, N, dim]."""
        x = x + self.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
        out: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Eagle(TrainedHead):
    """EAGLE-3 (2503.01840), trained as it drafts: from the second depth on it reads its own states.

    At depth j a position attends to earlier positions as they were at depth 0, and to itself at the depths since.
    """

    def __init__(self, config: LlamaConfig, frozen: FrozenParts, depth: int, states: Sequence[int]) -> None:
        super().__init__(frozen, depth, states)
        self.fc = nn.Linear(len(states) * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([HeadLayer(config, eagle=True)])
        self.norm = _norm_of(frozen, config)

    def forward(self, states: torch.Tensor, ids: torch.Tensor, positions: torch.Tensor) -> list[torch.Tensor]:
        layer: Any = self.layers[0]
        count = states.shape[1]
        at = torch.arange(count, device=ids.device)
        future = torch.full((count, count), _HIDDEN, device=ids.device).triu(1)
        x, read, logits = self.fc(states), [], []
        for depth in range(self.depth):
            tokens = layer.input_layernorm(self._embedded(ids[:, 1 + depth : 1 + depth + count]))
            queries, *keys_values = layer.self_attn(torch.cat((tokens, layer.hidden_norm(x)), -1), at + depth)
            read.append(keys_values)
            x = layer.after(x, _attend_over_depths(queries, read, future))
            logits.append(self._logits(self.norm(x[:, positions])))
        return logits


class DFlash(TrainedHead):
    """DFlash (2602.06036): a block of a token and `depth` masks, which attend to the target's states and each other."""

    def __init__(
        self, config: LlamaConfig, frozen: FrozenParts, depth: int, states: Sequence[int], mask_token: int
    ) -> None:
        super().__init__(frozen, depth, states)
        self.mask_token = mask_token
        self.fc = nn.Linear(len(states) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(HeadLayer(config, eagle=False) for _ in range(config.num_hidden_layers))
        self.norm = _norm_of(frozen, config)

    def forward(self, states: torch.Tensor, ids: torch.Tensor, positions: torch.Tensor) -> list[torch.Tensor]:
        size, context = self.depth + 1, torch.arange(states.shape[1], device=ids.device)
        context_states = self.hidden_norm(self.fc(states))
        blocks = torch.full((*positions.shape, size), self.mask_token, device=ids.device).repeat(len(ids), 1, 1)
        blocks[:, :, 0] = ids[:, positions + 1]
        at = (positions[:, None] + 1 + torch.arange(size, device=ids.device)).flatten()
        later = torch.zeros(len(positions), 1, len(context), device=ids.device)
        later = later.masked_fill(context > positions[:, None, None], _HIDDEN)
        x = self._embedded(blocks.flatten(1))
        layers: Any = self.layers
        for layer in layers:
            _, *before = layer.self_attn(context_states, context)
            queries, *block = layer.self_attn(layer.input_layernorm(x), at)
            x = layer.after(x, _attend_in_blocks(queries, before, block, later))
        drafted = self.norm(torch.unflatten(x, 1, (-1, size))[:, :, 1:])
        return list(self._logits(drafted).unbind(2))

    def training_positions(self, ids: torch.Tensor) -> torch.Tensor:
        """The starts of adjacent blocks, from an offset that depends on these tokens."""
        size = self.depth + 1
        return torch.arange(0, ids.shape[1] - self.depth - size + 1, size, device=ids.device) + ids.sum() % size


class Medusa(TrainedHead):
    """Medusa (2401.10774): each depth has its layers and output matrix on the target's last state."""

    def __init__(self, config: LlamaConfig, frozen: FrozenParts, depth: int, states: Sequence[int]) -> None:
        super().__init__(frozen, depth, states)
        self.blocks = nn.ModuleList(_Residual(config) for _ in range(depth))
        self.lm_heads = nn.ModuleList(_linear(frozen.head) for _ in range(depth))

    def forward(self, states: torch.Tensor, ids: torch.Tensor, positions: torch.Tensor) -> list[torch.Tensor]:  # noqa: ARG002
        return [head(block(states[:, positions])) for block, head in zip(self.blocks, self.lm_heads, strict=True)]


class _Residual(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size = config.hidden_size
        # With zeros it begins as the target's head.
        self.layers = nn.ModuleList(_linear(torch.zeros(size, size)) for _ in range(config.num_hidden_layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return x


def _linear(weight: torch.Tensor) -> nn.Linear:
    """A matrix that starts with this weight [out, in]."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    made.weight = nn.Parameter(weight.clone())
    return made


def _norm_of(frozen: FrozenParts, config: LlamaConfig) -> LlamaRMSNorm:
    norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
    norm.weight = nn.Parameter(frozen.norm.clone())
    return norm


def _split_heads(x: torch.Tensor, dim: int, norm: nn.Module | None = None) -> torch.Tensor:
    """[B, heads, N, dim] of [B, N, heads x dim]."""
    x = torch.unflatten(x, -1, (-1, dim))
    return (x if norm is None else norm(x)).transpose(1, 2)


def _attend_over_depths(
    queries: torch.Tensor, read: Sequence[Sequence[torch.Tensor]], future: torch.Tensor
) -> torch.Tensor:
    """[B, heads, N, dim]; `read`: keys and values of each depth so far; `future` [N, N] masks those of depth 0."""
    (keys, values), *since = read
    scores = [(queries * later).sum(-1, keepdim=True) for later, _ in since]
    weights = torch.cat((queries @ keys.mT + future, *scores), -1).softmax(-1)
    attended = weights[..., : len(future)] @ values
    for i, (_, more) in enumerate(since, start=len(future)):
        attended = attended + weights[..., i, None] * more
    return attended


def _attend_in_blocks(
    queries: torch.Tensor, before: Sequence[torch.Tensor], block: Sequence[torch.Tensor], later: torch.Tensor
) -> torch.Tensor:
    """[B, heads, P x S, dim] of P blocks of S; `later` [P, 1, T] masks keys and values `before` [.., T, dim]."""
    keys, values = before
    apart, context = (len(later), -1), keys.shape[2]
    outside = torch.unflatten(queries @ keys.mT, 2, apart) + later
    inside = torch.unflatten(queries, 2, apart) @ torch.unflatten(block[0], 2, apart).mT
    weights = torch.cat((outside, inside), -1).softmax(-1)
    outer, inner = weights[..., :context].flatten(2, 3), weights[..., context:]
    attended: torch.Tensor = outer @ values + (inner @ torch.unflatten(block[1], 2, apart)).flatten(2, 3)
    return attended
