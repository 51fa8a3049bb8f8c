"""The steps of a pass that are more than a product of matrices, in plain torch: for any device, in static shapes.

They are what `kernels` is held to, and what runs where Triton is missing. All compute in float32 and round once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from adaptspec.gpu.combs import Candidates, Comb
from adaptspec.gpu.draft_bounds import Bounds
from adaptspec.gpu.paged_cache import PagedCache
from adaptspec.gpu.plan import BRANCH, AttentionPlan, tile_tokens
from adaptspec.models import noise
from adaptspec.models.attention import fold, unfold
from adaptspec.models.sampling import MIN_TEMPERATURE


class HeadNorm(NamedTuple):
    """RMS norm of single heads: weights [heads + kv_heads, dim], of queries and then keys."""

    weight: torch.Tensor
    eps: float


class Choice(NamedTuple):
    """Of N positions the token drawn (int32), how likely it was given the noise, and the entropy in nats (float32).

    The entropy is no number where a logit is none. All are [N]; of several candidates, draws without replacement, token
    and likelihood are [N, candidates], the first one first.
    """

    token: torch.Tensor
    confidence: torch.Tensor
    entropy: torch.Tensor


class ChoiceParts(NamedTuple):
    """The same of S parts of the vocabulary, to be merged: `numbers` float32 [5, N, S], `tokens` int32 [N, S].

    Numbers: the largest score with noise, and the sum of exp(others - it); the largest score, the sum of exp(score -
    it), and that sum weighted with score - it. Parts from several devices can be put side by side. A part's further
    candidates are parts of their own, of no logits.
    """

    numbers: torch.Tensor
    tokens: torch.Tensor


class RuledRows(NamedTuple):
    """How the logits of B rows are changed before tokens are drawn."""

    lines: torch.Tensor  # int64 [B] of the tables; -1: not at all, but for temperature
    temperatures: torch.Tensor  # float32 [B]
    penalties: torch.Tensor  # float32 [B, 3]: repetition, frequency, presence
    top_k: torch.Tensor  # int64 [B]; 0: all
    cuts: torch.Tensor  # float32 [B, 2]: top-p, the logarithm of min-p
    drafted: torch.Tensor  # int64 [B, D]


class RuleTables(NamedTuple):
    """What is kept for every line: how often each token was written, twice, + 1 where the prompt has it; its bias.

    `masks` are bits of tokens that may follow, 32 of them a word.
    """

    counts: torch.Tensor  # int32 [lines, V]
    bias: torch.Tensor  # float32 [lines, V]
    masks: torch.Tensor  # int32 [M, words]


class RuledPositions(NamedTuple):
    """N positions, all int64: the row of each, and which of its drafted tokens come before it."""

    rows: torch.Tensor  # -1: padding, which is left as it is
    before: torch.Tensor  # so many of its chain
    aside: torch.Tensor  # and this one; -1: none
    masks: torch.Tensor  # the line of its mask; -1: none


class Reading(NamedTuple):
    """T tokens of B rows to be read in a pass. What does not live may be anything: it is padding."""

    owners: torch.Tensor  # int64 [T]: which of the rows
    offsets: torch.Tensor  # int64 [T]: how far behind its newest token; a drafted one from 1 on
    live: torch.Tensor  # bool [T]
    rows: torch.Tensor  # int64 [B] of the block table
    lengths: torch.Tensor  # int64 [B] tokens so far
    newest: torch.Tensor  # int64 [B, 2] the last two of them
    drafted: torch.Tensor  # int64 [B, N]


class Drafts(NamedTuple):
    """The drafts of B rows, which a step [1] of the draft model extends in place."""

    step: torch.Tensor  # int64 [1], from 0
    asked: torch.Tensor  # bool [B]: who is still to be drafted for
    alive: torch.Tensor  # float32 [B]: see `Bounds.goes_on`
    depths: torch.Tensor  # int64 [B], at most
    counts: torch.Tensor  # int64 [B] tokens so far
    drafted: torch.Tensor  # int64 [B, N], and of each of them
    confidence: torch.Tensor  # float32 [B, N]
    entropy: torch.Tensor  # float32 [B, N]


def attend(queries: torch.Tensor, pool: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
    """What queries [T, heads * dim] see of one layer's `pool` [slots, 2 * kv_heads * dim]; 0 for padding."""
    heads, count = plan.heads, len(queries)
    first, size, row = plan.tiles.long().unbind(1)
    within = torch.arange(tile_tokens(heads), device=queries.device)
    live = within < size[:, None]
    token = torch.where(live, first[:, None] + within, 0)
    live &= plan.base[token] >= 0
    table = plan.table.index_select(0, row).flatten()
    blocks = pool.view(-1, plan.block, pool.shape[1]).index_select(0, table)
    cached = blocks.view(len(row), -1, pool.shape[1]).float()
    visible = _visible(plan, token, cached.shape[1]) & live[:, :, None]
    # What nobody sees may never have been written: it may be no number, and then no mask helps.
    cached = torch.where(visible.any(1).unsqueeze(2), cached, 0.0)
    keys, values = cached.view(len(row), -1, 2, heads.kv, heads.dim).permute(2, 0, 3, 1, 4)
    folded = fold(queries.index_select(0, token.flatten()).float().view(*token.shape, -1), heads)
    own = pool.index_select(0, plan.own[token].flatten()).float().view(*token.shape, 2, heads.kv, heads.dim)
    own_key, own_value = own.permute(2, 0, 3, 1, 4).repeat(1, 1, 1, heads.group, 1)
    hidden = ~visible.repeat(1, heads.group, 1).unsqueeze(1)
    scores = (folded @ keys.transpose(2, 3) * plan.scale).masked_fill(hidden, -torch.inf)
    mine = (folded * own_key).sum(3, keepdim=True) * plan.scale
    peak = torch.maximum(scores.amax(3, keepdim=True), mine)
    shares, share = (scores - peak).exp(), (mine - peak).exp()
    out = (shares @ values + share * own_value) / (shares.sum(3, keepdim=True) + share)
    flat = unfold(out, heads).flatten(0, 1).to(queries.dtype)
    result = flat.new_zeros((count + 1, flat.shape[1]))
    return result.index_copy_(0, torch.where(live, token, count).flatten(), flat)[:count]


def _visible(plan: AttentionPlan, token: torch.Tensor, places: int) -> torch.Tensor:
    """Which of a row's `places` the tokens [n, width] see, [n, width, places]."""
    place = torch.arange(places, device=token.device)
    beyond = place - plan.base[token].long()[:, :, None]
    bits = plan.seen[token][:, :, None] >> beyond.clamp(0, BRANCH - 1) & 1
    visible = (beyond < 0) | ((beyond < BRANCH) & (bits == 1))
    if plan.window is None:
        return visible
    return visible & (place > plan.positions[token].long()[:, :, None] - plan.window)


def rope_store(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    pool: torch.Tensor,
    norm: HeadNorm | None = None,
) -> torch.Tensor:
    """Queries [T, heads * dim], normalised and rotated in `qkv`; keys, so treated, and values go to `slots` of `pool`.

    `cos` and `sin` are float32 [context, dim / 2], of pairs that lie side by side. What `qkv` [T, (heads + 2 kv_heads)
    * dim] holds beside the queries is not to be used afterwards.
    """
    dim, queries = 2 * cos.shape[1], qkv.shape[1] - pool.shape[1]
    turned = qkv[:, : queries + pool.shape[1] // 2].view(len(qkv), -1, dim)
    wide = turned.float()
    if norm is not None:
        wide = F.rms_norm(wide, (dim,), None, norm.eps) * norm.weight.float()
    even, odd = wide.view(*wide.shape[:2], -1, 2).unbind(3)
    c, s = (table.index_select(0, positions).unsqueeze(1) for table in (cos, sin))
    turned.copy_(torch.stack((even * c - odd * s, even * s + odd * c), 3).flatten(2))
    pool.index_copy_(0, slots.long(), qkv[:, queries:])
    return qkv[:, :queries]


def add_norm(x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Adds `x` to `residual` [T, hidden] in place, rounded to its dtype, and gives its RMS norm in the weight's dtype.

    None for `x` adds nothing: the norm before the first layer.
    """
    if x is not None:
        residual.add_(x)
    return F.rms_norm(residual.float(), weight.shape, weight.float(), eps).to(weight.dtype)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up [T, mlp] of `gate_up` [T, 2 mlp]."""
    gate, up = gate_up.float().chunk(2, 1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def apply_rules(logits: torch.Tensor, at: RuledPositions, rows: RuledRows, tables: RuleTables) -> None:
    """Change logits [N, ...] in place as `models.sampling` does: what is removed is -inf then.

    They are not divided by the temperature, though top-p and min-p go by what would be left if they were.
    """
    width = min(logits.shape[1], tables.counts.shape[1])
    given, line = logits[:, :width], torch.where(at.rows < 0, -1, rows.lines[at.rows])
    word, own = (table.index_select(0, line.clamp(min=0))[:, :width] for table in (tables.counts, tables.bias))
    steps = torch.arange(rows.drafted.shape[1] + 1, device=logits.device)
    drafted, counts = torch.cat((at.aside.unsqueeze(1), rows.drafted[at.rows]), 1), (word >> 1).float()
    before = (steps <= at.before.unsqueeze(1)) & (drafted >= 0) & (drafted < width)
    counts = counts.scatter_add(1, torch.where(before, drafted, 0), before.float())
    present = counts.clamp(max=1.0)
    repetition, frequency, presence = rows.penalties[at.rows].unsqueeze(2).unbind(1)
    factor = torch.maximum(present, (word & 1).float()) * (repetition - 1.0) + 1.0
    scores = given.clamp(min=0.0) / factor + given.clamp(max=0.0) * factor
    scores = scores - frequency * counts - presence * present + own
    token = torch.arange(width, device=logits.device)
    bits = tables.masks.index_select(0, at.masks.clamp(min=0)).index_select(1, token >> 5) >> (token & 31) & 1
    scores = torch.where((bits == 1) | (at.masks < 0).unsqueeze(1), scores, -torch.inf)
    kept = scores >= _threshold(scores, at.rows, rows)
    scores = torch.where(kept | scores.isnan(), scores, -torch.inf)
    given.copy_(torch.where((line >= 0).unsqueeze(1), scores, given))


def _threshold(scores: torch.Tensor, index: torch.Tensor, rows: RuledRows) -> torch.Tensor:
    """The least score [N, 1] that top-k, top-p and min-p keep, by sorting all of them."""
    divisor = rows.temperatures[index].unsqueeze(1)
    divisor = torch.where(divisor > 0.0, divisor.clamp(min=MIN_TEMPERATURE), 1.0)
    rank, (top_p, least) = rows.top_k[index].unsqueeze(1), rows.cuts[index].unsqueeze(2).unbind(1)
    order = scores.sort(1, descending=True).values
    kth = order.gather(1, (rank - 1).clamp(0, order.shape[1] - 1))
    threshold = torch.where(rank > 0, kth, -torch.inf)
    shares = torch.where(order >= threshold, order / divisor, -torch.inf).softmax(1)
    last = torch.searchsorted(shares.cumsum(1), top_p.contiguous()).clamp(max=order.shape[1] - 1)
    threshold = torch.where(top_p < 1.0, torch.maximum(threshold, order.gather(1, last)), threshold)
    return torch.maximum(threshold, order[:, :1] + least * divisor)


def token_keys(vocab_size: int, device: torch.device) -> torch.Tensor:
    """Keys [vocab_size] of all tokens, int64: see `models.noise.token_keys`."""
    return torch.from_numpy(noise.token_keys(vocab_size)).to(device)


def gumbel_of(word: torch.Tensor) -> torch.Tensor:
    """Noise of words, each a position's key xor a token's; overwrites `word`. See `models.noise.gumbel`."""
    word.mul_(noise.PAIR_FIRST)
    word.bitwise_xor_(word >> 32)
    word.mul_(noise.PAIR_SECOND)
    word.bitwise_or_(noise.SIGN_AND_LAST)
    found = word.to(torch.float32).mul_(noise.UNIT)
    return found.log1p_().neg_().log_().neg_()


def choose(
    logits: torch.Tensor, temperatures: torch.Tensor, keys: torch.Tensor, token_keys: torch.Tensor, candidates: int = 1
) -> Choice:
    """The one choice of every position: argmax(logits / temperature + noise), without both at temperature 0.

    `logits` float32 [N, ...], `temperatures` float32 [N], `keys` int64 [N] of `models.noise.position_keys`,
    `token_keys` int64 [V]: logits beyond V are left out. Of equal scores the first token is chosen.
    With several `candidates` the tokens of the next largest come, too.
    """
    return merge_choices(choose_parts(logits, temperatures, keys, token_keys, candidates=candidates), candidates)


def choose_parts(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    keys: torch.Tensor,
    token_keys: torch.Tensor,
    first: int = 0,
    candidates: int = 1,
) -> ChoiceParts:
    """The same up to the merge, where logits and `token_keys` may be of a part of the vocabulary from `first` on."""
    width = min(logits.shape[1], len(token_keys))
    noisy = (temperatures > 0.0).unsqueeze(1)
    divisor = torch.where(noisy, temperatures.unsqueeze(1).clamp(min=MIN_TEMPERATURE), 1.0)
    scores = logits[:, :width] / divisor
    perturbed = torch.where(noisy, scores + gumbel_of(keys.unsqueeze(1) ^ token_keys[:width]), scores)
    token = perturbed.argmax(1, keepdim=True)
    best, top = perturbed.gather(1, token), scores.amax(1, keepdim=True)
    removed = scores == -torch.inf
    below = torch.where(removed, 0.0, scores - top)
    shares = torch.where(removed, 0.0, below.exp())
    sums = torch.where(removed, 0.0, (perturbed - best).exp()), shares, shares * below
    total, share, weighted = (one.sum(1, keepdim=True) for one in sums)
    numbers, tokens = [torch.stack((best, total, top, share, weighted))], [token]
    for _ in range(1, candidates):
        perturbed = perturbed.scatter(1, token, -torch.inf)
        token = perturbed.argmax(1, keepdim=True)
        numbers.append(torch.zeros_like(numbers[0]))
        numbers[-1][0], numbers[-1][2] = perturbed.gather(1, token), -torch.inf
        tokens.append(token)
    return ChoiceParts(torch.cat(numbers, 2), (torch.cat(tokens, 1) + first).int())


def merge_choices(parts: ChoiceParts, candidates: int = 1) -> Choice:
    """The choice among all parts."""
    best, total, top, share, weighted = parts.numbers.unbind(0)
    leading, peak = best.amax(1, keepdim=True), top.amax(1, keepdim=True)
    others = parts.tokens.amax(1, keepdim=True)  # only where no score is a number
    every = (total * (best - leading).exp()).sum(1, keepdim=True)
    found, likely, most = list[torch.Tensor](), list[torch.Tensor](), leading
    for rank in range(candidates):
        if rank:
            best = torch.where(parts.tokens == found[-1], -torch.inf, best)
            most = best.amax(1, keepdim=True)
        found.append(torch.where(best == most, parts.tokens, others).amin(1, keepdim=True))
        likely.append((most - leading).exp() / every)
    below = torch.where(top == -torch.inf, 0.0, top - peak)
    scale = (top - peak).exp()
    shares = (share * scale).sum(1)
    entropy = shares.log() - ((weighted + share * below) * scale).sum(1) / shares
    shape = (-1, candidates) if candidates > 1 else (-1,)
    return Choice(torch.cat(found, 1).view(shape), torch.cat(likely, 1).view(shape), entropy)


def pass_inputs(reading: Reading, cache: PagedCache, size: int) -> tuple[torch.Tensor, ...]:
    """All that `Inputs` are made of but tiles, for a pass over these tokens that is padded to `size`."""
    owners, offsets, live, rows, lengths, newest, drafted = reading
    owner, offset = (torch.where(live, one, 0) for one in (owners, offsets))
    token = torch.where(offset > 0, drafted[owner, (offset - 1).clamp(min=0)], newest[owner, 1 + offset.clamp(max=0)])
    place = torch.where(live, lengths[owner] - 1 + offset, 0)
    block, within = torch.div(place, cache.block_size, rounding_mode="floor"), place % cache.block_size
    slot = cache.table[rows[owner], block].long() * cache.block_size + within
    padding = (token, 0), (place.int(), 0), (slot, cache.rubbish), (place.int(), -1)
    laid = [F.pad(torch.where(live, one, value), (0, size - len(live)), value=value) for one, value in padding]
    return *laid, torch.zeros_like(laid[0])


def extend_drafts(
    found: Choice, drafts: Drafts, bounds: Bounds, ends: torch.Tensor, side: tuple[Comb, Candidates] | None = None
) -> None:
    """Keep what a step has `found` for the rows asked; of them those go on whom no table, depth or end [E] stops.

    Of several candidates the first one is the chain's, the others are kept at its `side`.
    """
    step, asked = drafts.step, drafts.asked
    if side is not None:
        side[1].beside(found.token, found.confidence, side[0], asked, step)
        found = found._replace(token=found.token[:, 0], confidence=found.confidence[:, 0])
    for kept, values in zip(drafts[-3:], (found.token.long(), found.confidence, found.entropy), strict=True):
        column = torch.where(asked, values, kept.index_select(1, step).squeeze(1))
        kept.index_copy_(1, step, column.unsqueeze(1))
    drafts.counts.add_(asked)
    going = bounds.goes_on(step, asked, found.confidence, found.entropy, drafts.alive)
    going &= (drafts.depths > step + 1) & ~(found.token.unsqueeze(1) == ends).any(1)
    asked.copy_(going)
    step.add_(1)
