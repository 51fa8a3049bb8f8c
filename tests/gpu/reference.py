"""The operators of a decoder on a GPU in plain torch, for any device: what the kernels are compared with.

Tests also run a decoder with them on a CPU, where a token's result must not depend on what else is in its pass.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch.overrides import wrap_torch_function

from adaptspec.gpu.attention_plan import BRANCH, SPLIT, AttentionPlan, HeadNorm, tile_tokens
from adaptspec.gpu.device_sampling import Choice, PositionRules, RuleTables
from adaptspec.models import noise
from adaptspec.models.attention import Heads
from adaptspec.models.sampling import MIN_TEMPERATURE

PLAN_TENSORS = ("base", "seen", "slots", "positions", "tiles", "lists", "num_items")


def attend(queries: torch.Tensor, pool: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
    """See `kernels.attend`. It reads the number of work items on the host, so no CUDA graph can hold it.

    All is computed in float64 and rounded once, in the same steps for every token: whole splits, with all lines of a
    tile. What a BLAS adds in another order then does not reach the result.
    """
    return _attend(queries, pool, {name: getattr(plan, name) for name in PLAN_TENSORS}, plan)


# One call for the modes of torch that record calls: to them it is one operator, like a launch of the kernel.
@wrap_torch_function(lambda queries, *_: (queries,))
def _attend(
    queries: torch.Tensor, pool: torch.Tensor, tensors: dict[str, torch.Tensor], plan: AttentionPlan
) -> torch.Tensor:
    plan, heads = replace(plan, **tensors), plan.heads
    asked = queries.reshape(len(queries), heads.kv, heads.group, heads.dim).double()
    key, value = pool.index_select(0, plan.slots).view(-1, 2, heads.kv, 1, heads.dim).double().unbind(1)
    live = (plan.base >= 0)[:, None, None, None]
    # A token's own term, to which the splits of its tile are added.
    peak = torch.where(live, (asked * key).sum(3, keepdim=True) * plan.scale, 0.0)
    total, result = torch.ones_like(peak), torch.where(live, value, 0.0).repeat(1, 1, heads.group, 1)
    items = plan.lists[: 2 * int(plan.num_items)].view(-1, 2).long()
    for split in items[:, 1].unique().tolist():
        tiles = plan.tiles.long()[items[items[:, 1] == split, 0]]
        within = torch.arange(tile_tokens(heads), device=queries.device)
        used = within < tiles[:, 1:2]
        token = torch.where(used, tiles[:, :1] + within, 0)
        visible, keys, values = _read_split(pool, plan, tiles[:, 2:], split, token, used)
        scores = _fold(asked[token]) @ keys.transpose(2, 3) * plan.scale
        scores = scores.masked_fill(~visible.repeat(1, heads.group, 1).unsqueeze(1), -torch.inf)
        before = _fold(peak[token])
        higher = torch.maximum(before, scores.amax(3, keepdim=True))
        shares, rescale = (scores - higher).exp(), (before - higher).exp()
        sums = _fold(result[token]) * rescale + shares @ values
        totals = _fold(total[token]) * rescale + shares.sum(3, keepdim=True)
        for kept, found in ((peak, higher), (total, totals), (result, sums)):
            kept[token[used]] = _unfold(found, heads)[used]
    return (result / total).flatten(1).to(queries.dtype)


def _read_split(
    pool: torch.Tensor, plan: AttentionPlan, begins: torch.Tensor, split: int, token: torch.Tensor, used: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Which cached tokens of a split the tokens [n, width] of tiles see, and keys and values [n, kv, SPLIT, dim]."""
    heads, at = plan.heads, split * SPLIT + torch.arange(SPLIT, device=pool.device)
    beyond = at - plan.base[token].long()[:, :, None]
    bits = plan.seen[token][:, :, None] >> beyond.clamp(0, BRANCH - 1) & 1
    visible = used[:, :, None] & ((beyond < 0) | ((beyond < BRANCH) & (bits == 1)))
    if plan.window is not None:
        visible = visible & (at > plan.positions[token].long()[:, :, None] - plan.window)
    # A slot that no token sees may never have been written. It may be NaN, and then no mask helps.
    needed = visible.any(1)
    entry = torch.where(needed, begins + at // plan.block_size, 0)
    slot = torch.where(needed, plan.lists[entry].long() * plan.block_size + at % plan.block_size, 0)
    cached = torch.where(needed[:, :, None], pool[slot], 0.0).double()
    keys, values = cached.view(len(token), SPLIT, 2, heads.kv, heads.dim).permute(2, 0, 3, 1, 4)
    return visible, keys, values


def _fold(x: torch.Tensor) -> torch.Tensor:
    """[n, width, kv, group, d] to [n, kv, group * width, d]."""
    return x.permute(0, 2, 3, 1, 4).flatten(2, 3)


def _unfold(x: torch.Tensor, heads: Heads) -> torch.Tensor:
    """The reverse of `_fold`."""
    return x.unflatten(2, (heads.group, -1)).permute(0, 3, 1, 2, 4)


def rope_store(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    pool: torch.Tensor,
    norm: HeadNorm | None = None,
) -> torch.Tensor:
    """See `kernels.rope_store`."""
    dim, queries = 2 * cos.shape[1], qkv.shape[1] - pool.shape[1]
    rotated = qkv[:, : queries + pool.shape[1] // 2].view(len(qkv), -1, dim)
    wide = rotated.float()
    if norm is not None:
        wide = F.rms_norm(wide, (dim,), None, norm.eps) * norm.weight.float()
    even, odd = wide.view(*wide.shape[:2], -1, 2).unbind(3)
    c, s = (table.index_select(0, positions).unsqueeze(1) for table in (cos, sin))
    rotated.copy_(torch.stack((even * c - odd * s, even * s + odd * c), 3).flatten(2))
    pool.index_copy_(0, slots.long(), qkv[:, queries:])
    return qkv[:, :queries]


def add_norm(x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `kernels.add_norm`."""
    if x is not None:
        residual.add_(x)
    return F.rms_norm(residual.float(), weight.shape, weight.float(), eps).to(weight.dtype)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See `kernels.silu_mul`."""
    gate, up = gate_up.float().chunk(2, 1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def apply_rules(logits: torch.Tensor, rules: PositionRules, tables: RuleTables) -> None:
    """See `sampling_kernels.apply_rules`."""
    width = min(logits.shape[1], tables.counts.shape[1])
    given, line = logits[:, :width], rules.lines.clamp(min=0)
    word, bias = (table.index_select(0, line)[:, :width] for table in (tables.counts, tables.bias))
    drafted = (rules.paths >= 0) & (rules.paths < width)
    counts = (word >> 1).float().scatter_add(1, torch.where(drafted, rules.paths, 0).long(), drafted.float())
    present = counts.clamp(max=1.0)
    repetition, frequency, presence = rules.penalties.unsqueeze(2).unbind(1)
    factor = torch.maximum(present, (word & 1).float()) * (repetition - 1.0) + 1.0
    scores = given.clamp(min=0.0) / factor + given.clamp(max=0.0) * factor
    scores = scores - frequency * counts - presence * present + bias
    token = torch.arange(width, device=logits.device)
    bits = tables.masks.index_select(0, rules.masks.clamp(min=0)).index_select(1, token >> 5) >> (token & 31) & 1
    scores = torch.where((bits == 1) | (rules.masks < 0).unsqueeze(1), scores, -torch.inf)
    scores = torch.where((scores >= _threshold(scores, rules)) | scores.isnan(), scores, -torch.inf)
    given.copy_(torch.where((rules.lines >= 0).unsqueeze(1), scores, given))


def _threshold(scores: torch.Tensor, rules: PositionRules) -> torch.Tensor:
    """The least score [N, 1] that top-k, top-p and min-p keep, by sorting all of them."""
    divisor = rules.temperatures.unsqueeze(1)
    divisor = torch.where(divisor > 0.0, divisor.clamp(min=MIN_TEMPERATURE), 1.0)
    rank, (top_p, log_min_p) = rules.top_k.unsqueeze(1), rules.cuts.unsqueeze(2).unbind(1)
    order = scores.sort(1, descending=True).values
    kth = order.gather(1, (rank - 1).clamp(0, order.shape[1] - 1))
    threshold = torch.where(rank > 0, kth, -torch.inf)
    shares = torch.where(order >= threshold, order / divisor, -torch.inf).softmax(1)
    last = torch.searchsorted(shares.cumsum(1), top_p.contiguous()).clamp(max=order.shape[1] - 1)
    threshold = torch.where(top_p < 1.0, torch.maximum(threshold, order.gather(1, last)), threshold)
    return torch.maximum(threshold, order[:, :1] + log_min_p * divisor)


def token_keys(vocab_size: int, device: str | torch.device = "cpu") -> torch.Tensor:
    """Keys [vocab_size] of all tokens, int64: see `models.noise.token_keys`."""
    return torch.from_numpy(noise.token_keys(vocab_size)).to(device)


def gumbel(word: torch.Tensor) -> torch.Tensor:
    """Noise of words, each the key of a position xor the key of a token: see `models.noise.gumbel`."""
    word = word * noise.PAIR_FIRST
    word = (word ^ (word >> 32)) * noise.PAIR_SECOND
    uniform = (word | noise.SIGN_AND_LAST).to(torch.float32) * noise.UNIT
    return -((-uniform.log1p()).log())


def choose(
    logits: torch.Tensor, temperatures: torch.Tensor, keys: torch.Tensor, token_keys: torch.Tensor, candidates: int = 1
) -> Choice:
    """See `sampling_kernels.choose`."""
    width = min(logits.shape[1], len(token_keys))
    sampled = (temperatures > 0.0).unsqueeze(1)
    divisor = torch.where(sampled, temperatures.unsqueeze(1).clamp(min=MIN_TEMPERATURE), 1.0)
    scores = logits[:, :width] / divisor
    noisy = torch.where(sampled, scores + gumbel(keys.unsqueeze(1) ^ token_keys[:width]), scores)
    removed, leading = scores == -torch.inf, noisy.amax(1, keepdim=True)
    total = torch.where(removed, 0.0, (noisy - leading).exp()).sum(1, keepdim=True)
    token = torch.arange(width, device=logits.device)
    tokens, confidence = list[torch.Tensor](), list[torch.Tensor]()
    for _ in range(candidates):
        best = noisy.amax(1, keepdim=True)
        # The first of equals, which torch's argmax promises on a CPU only; token 0 if no score is a number.
        first = torch.where(noisy == best, token, width).amin(1, keepdim=True)
        tokens.append(torch.where(first == width, 0, first))
        confidence.append((best - leading).exp() / total)
        noisy = noisy.scatter(1, tokens[-1], -torch.inf)
    below = torch.where(removed, 0.0, scores - scores.amax(1, keepdim=True))
    shares = torch.where(removed, 0.0, below.exp())
    entropy = shares.sum(1).log() - (shares * below).sum(1) / shares.sum(1)
    return Choice(torch.cat(tokens, 1).int(), torch.cat(confidence, 1), entropy)
