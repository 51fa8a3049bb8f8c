"""The operators of a decoder on a GPU as Triton kernels: attention, RoPE, norms, SiLU, sampling rules and choice.

One source for every CUDA device from sm_80 on. Import it only where Triton is installed: CUDA builds of torch bring it.
All tensors must lie on the current device.

A result never depends on what else is in a pass. Attention is summed per split of `SPLIT` cached tokens, and the sums
of splits are added in ascending order to a token's own term, whether one program walks over all splits of a tile or
programs share them. Peaks of scores (in units of log 2) are rounded up to whole numbers: sums are then rescaled by
powers of two, without rounding, so it does not matter when. Products and sums are not fused: the compiler would choose
where, differently in every kernel.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from adaptspec.gpu.attention_plan import BRANCH, SPLIT, AttentionPlan, HeadNorm, tile_lines
from adaptspec.gpu.sampling_kernels import apply_rules, choose

__all__ = ["add_norm", "apply_rules", "attend", "choose", "rope_store", "silu_mul"]

CHUNK = 1024  # numbers of one program of `silu_mul`: 8 or 16 bytes for each of its threads
HEADS_AT_ONCE = 8  # heads of one program of `rope_store`
_BRANCH, _SPLIT = tl.constexpr(BRANCH), tl.constexpr(SPLIT)
_LOWEST = tl.constexpr(-1e30)  # the peak of no scores: finite, so that differences are numbers
_EXACT = {"enable_fp_fusion": False}


@triton.jit
def _power(exponent):
    """2 ** exponent exactly, for whole numbers of at most 0; 0 below -126."""
    return ((tl.maximum(exponent, -127.0) + 127.0).to(tl.int32) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _bit_length(word):
    """Number of bits up to the highest one set."""
    length = (word != 0).to(tl.int32)
    for i in tl.static_range(6):
        more = (word >> (32 >> i)) != 0
        length += tl.where(more, 32 >> i, 0)
        word = tl.where(more, word >> (32 >> i), word)
    return length


@triton.jit
def _load_tile(
    queries, stride, tile, base, seen, positions, head,
    GROUP: tl.constexpr, KV: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, LINES: tl.constexpr,
    WINDOW: tl.constexpr,
):  # fmt: skip
    """Queries [LINES, PAD] of a tile with what each line sees; all lines see the cached tokens `begin` to `common`.

    `index` [LINES] numbers the heads of all tokens. Lines that are padding have a base of -1. No line sees a token
    before `begin`, or from `end` on. With a window, `common` is `begin`.
    """
    line, d = tl.arange(0, LINES), tl.arange(0, PAD)
    token = tl.load(tile) + line // GROUP
    first = tl.load(base + token, mask=line < tl.load(tile + 1) * GROUP, other=-1)
    live = first >= 0
    bits = tl.load(seen + token, mask=live, other=0)
    oldest = tl.load(positions + token, mask=live, other=0) - (WINDOW - 1)
    query_head = head * GROUP + line % GROUP
    address = queries + token.to(tl.int64)[:, None] * stride + (query_head * DIM)[:, None] + d[None, :]
    query = tl.load(address, mask=live[:, None] & (d < DIM)[None, :], other=0.0)
    common, end = tl.min(tl.where(live, first, 2147483647)), tl.max(first + _bit_length(bits))
    begin = end * 0
    if WINDOW > 0:
        begin = tl.maximum(tl.min(tl.where(live, oldest, 2147483647)), 0)
        common = begin * 0
    return query, token, token.to(tl.int64) * (KV * GROUP) + query_head, first, bits, oldest, begin, common, end


@triton.jit
def _sum_own(
    query, token, live, pool, slots, head, scale, KV: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr
):  # fmt: skip
    """The terms of the tokens themselves."""
    d = tl.arange(0, PAD)
    inside = live[:, None] & (d < DIM)[None, :]
    slot = tl.load(slots + token, mask=live, other=0)
    address = pool + slot[:, None] * (2 * KV * DIM) + head * DIM + d[None, :]
    key, value = tl.load(address, mask=inside, other=0.0), tl.load(address + KV * DIM, mask=inside, other=0.0)
    score = tl.sum(query.to(tl.float32) * key.to(tl.float32), 1) * scale
    peak = tl.ceil(score)
    total = tl.exp2(score - peak)
    return value.to(tl.float32) * total[:, None], peak, total


@triton.jit
def _sum_keys(
    query, acc, peak, total, pool, blocks, low, high, first, bits, oldest, head, scale,
    KV: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr, KEYS: tl.constexpr,
    RUN: tl.constexpr, WINDOW: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Adds the cached tokens from `low` to `high`; without MASKED, all queries see all of them."""
    d = tl.arange(0, PAD)
    for start in range(low, high, KEYS):
        at = start + tl.arange(0, KEYS)
        inside = (at < high)[:, None] & (d < DIM)[None, :]
        # One entry for each run of tokens in a block. Loaded for each token, it compiles to up to four times the loads.
        run = start + tl.arange(0, KEYS // RUN) * RUN
        block = tl.load(blocks + run // BLOCK, mask=run < high, other=0) if MASKED else tl.load(blocks + run // BLOCK)
        first_slot = block.to(tl.int64) * BLOCK + run % BLOCK
        slot = tl.reshape(first_slot[:, None] + tl.arange(0, RUN)[None, :], (KEYS,))
        address = pool + slot[:, None] * (2 * KV * DIM) + head * DIM + d[None, :]
        if MASKED or DIM != PAD:
            key = tl.load(address, mask=inside, other=0.0)
            value = tl.load(address + KV * DIM, mask=inside, other=0.0)
        else:
            key = tl.load(address)
            value = tl.load(address + KV * DIM)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if MASKED:
            beyond = at[None, :] - first[:, None]
            half = tl.where(beyond < 32, bits.to(tl.int32)[:, None], (bits >> 32).to(tl.int32)[:, None])
            visible = (beyond < 0) | ((beyond < _BRANCH) & (((half >> (beyond & 31)) & 1) == 1))
            if WINDOW > 0:
                visible = visible & (at[None, :] >= oldest[:, None])
            score = tl.where(visible, score, -float("inf"))
        higher = tl.maximum(peak, tl.ceil(tl.max(score, 1)))
        share = tl.exp2(score - higher[:, None])
        rescale = _power(peak - higher)
        total = total * rescale + tl.sum(share, 1)
        acc = tl.dot(share.to(value.dtype), value, acc * rescale[:, None], input_precision="ieee")
        peak = higher
    return acc, peak, total


@triton.jit
def _sum_split(
    query, pool, blocks, split, begin, common, end, first, bits, oldest, head, scale,
    KV: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr, LINES: tl.constexpr,
    KEYS: tl.constexpr, RUN: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """The sums of one split: of what all queries of the tile see, and then of the rest."""
    low = tl.maximum(split * _SPLIT, begin // KEYS * KEYS)
    high = tl.minimum((split + 1) * _SPLIT, end)
    middle = tl.minimum(tl.maximum(common // KEYS * KEYS, low), high)
    acc, total = tl.zeros((LINES, PAD), tl.float32), tl.zeros((LINES,), tl.float32)
    peak = tl.full((LINES,), _LOWEST, tl.float32)
    acc, peak, total = _sum_keys(
        query, acc, peak, total, pool, blocks, low, middle, first, bits, oldest, head, scale,
        KV, DIM, PAD, BLOCK, KEYS, RUN, WINDOW, False,
    )  # fmt: skip
    return _sum_keys(
        query, acc, peak, total, pool, blocks, middle, high, first, bits, oldest, head, scale,
        KV, DIM, PAD, BLOCK, KEYS, RUN, WINDOW, True,
    )  # fmt: skip


@triton.jit
def _store_sums(sums, peaks, totals, at, acc, peak, total, live, DIM: tl.constexpr, PAD: tl.constexpr):
    """Leaves the sums of one split in the workspace."""
    d = tl.arange(0, PAD)
    tl.store(peaks + at, peak, mask=live)
    tl.store(totals + at, total, mask=live)
    tl.store(sums + at[:, None] * DIM + d[None, :], acc, mask=live[:, None] & (d < DIM)[None, :])


@triton.jit
def _attend_items(
    queries, stride, pool, tiles, lists, num_items, base, seen, slots, positions,
    sums, peaks, totals, splits, scale,
    GROUP: tl.constexpr, KV: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
    LINES: tl.constexpr, KEYS: tl.constexpr, RUN: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """One key-value head of every n-th work item, n programs in all."""
    head = tl.program_id(0)
    for item in range(tl.program_id(1), tl.load(num_items), tl.num_programs(1)):
        tile, split = tiles + tl.load(lists + 2 * item) * 3, tl.load(lists + 2 * item + 1)
        query, token, index, first, bits, oldest, begin, common, end = _load_tile(
            queries, stride, tile, base, seen, positions, head, GROUP, KV, DIM, PAD, LINES, WINDOW
        )
        live = first >= 0
        if split == 0:
            acc, peak, total = _sum_own(query, token, live, pool, slots, head, scale, KV, DIM, PAD)
            _store_sums(sums, peaks, totals, index * splits + splits - 1, acc, peak, total, live, DIM, PAD)
        if (split * _SPLIT < end) & ((split + 1) * _SPLIT > begin):
            acc, peak, total = _sum_split(
                query, pool, lists + tl.load(tile + 2), split, begin, common, end, first, bits, oldest, head, scale,
                KV, DIM, PAD, BLOCK, LINES, KEYS, RUN, WINDOW,
            )  # fmt: skip
            _store_sums(sums, peaks, totals, index * splits + split, acc, peak, total, live, DIM, PAD)


@triton.jit
def _attend_tile(
    queries, stride, pool, out, tiles, lists, base, seen, slots, positions, scale,
    GROUP: tl.constexpr, KV: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
    LINES: tl.constexpr, KEYS: tl.constexpr, RUN: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """One key-value head of one tile, split by split."""
    head = tl.program_id(0)
    tile = tiles + (tl.num_programs(1) - 1 - tl.program_id(1)) * 3  # the end of a prompt, which sees most, first
    if tl.load(tile + 1) == 0:
        return
    query, token, index, first, bits, oldest, begin, common, end = _load_tile(
        queries, stride, tile, base, seen, positions, head, GROUP, KV, DIM, PAD, LINES, WINDOW
    )
    live = first >= 0
    acc, peak, total = _sum_own(query, token, live, pool, slots, head, scale, KV, DIM, PAD)
    blocks = lists + tl.load(tile + 2)
    for split in range(begin // _SPLIT, tl.cdiv(end, _SPLIT)):
        a, p, t = _sum_split(
            query, pool, blocks, split, begin, common, end, first, bits, oldest, head, scale,
            KV, DIM, PAD, BLOCK, LINES, KEYS, RUN, WINDOW,
        )  # fmt: skip
        higher = tl.maximum(peak, p)
        old, new = _power(peak - higher), _power(p - higher)
        acc, total, peak = acc * old[:, None] + a * new[:, None], total * old + t * new, higher
    d = tl.arange(0, PAD)
    result = tl.div_rn(acc, total[:, None]).to(out.dtype.element_ty)
    tl.store(out + index[:, None] * DIM + d[None, :], result, mask=live[:, None] & (d < DIM)[None, :])


@triton.jit
def _merge_splits(
    out, base, seen, positions, sums, peaks, totals, splits,
    HEADS: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, SPLITS: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """One head of one token: its own term and then its splits in ascending order, as `_attend_tile` adds them."""
    token = tl.program_id(0)
    d, first = tl.arange(0, PAD), tl.load(base + token)
    index = token.to(tl.int64) * HEADS + tl.program_id(1)
    if first < 0:
        tl.store(out + index * DIM + d, tl.zeros((PAD,), out.dtype.element_ty), mask=d < DIM)
        return
    end = tl.cdiv(first + _bit_length(tl.load(seen + token)), _SPLIT)
    begin = end * 0
    if WINDOW > 0:
        begin = tl.maximum(tl.load(positions + token) - (WINDOW - 1), 0) // _SPLIT
    split, last = tl.arange(0, SPLITS), index * splits + splits - 1
    needed = ((split >= begin) & (split < end)) | (split == splits - 1)
    highest = tl.max(tl.load(peaks + index * splits + split, mask=needed, other=_LOWEST), 0)
    rescale = _power(tl.load(peaks + last) - highest)
    acc = tl.load(sums + last * DIM + d, mask=d < DIM, other=0.0) * rescale
    total = tl.load(totals + last) * rescale
    for i in tl.range(begin, end, loop_unroll_factor=8):  # loads of eight splits are in flight at a time
        part = tl.load(sums + (index * splits + i) * DIM + d, mask=d < DIM, other=0.0)
        rescale = _power(tl.load(peaks + index * splits + i) - highest)
        acc += part * rescale
        total += tl.load(totals + index * splits + i) * rescale
    result = tl.div_rn(acc, total)
    tl.store(out + index * DIM + d, result.to(out.dtype.element_ty), mask=d < DIM)


@triton.jit
def _rope_store(
    qkv, cos, sin, positions, slots, pool, weight, eps,
    HEADS: tl.constexpr, KV: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, AT_ONCE: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """Some heads of one token."""
    token = tl.program_id(0)
    head, d, pair = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE), tl.arange(0, PAD), tl.arange(0, PAD // 2)
    column = head[:, None] * DIM + d[None, :]
    inside = (head < HEADS + 2 * KV)[:, None] & (d < DIM)[None, :]
    rotated = (head < HEADS + KV)[:, None]
    address = qkv + token.to(tl.int64) * ((HEADS + 2 * KV) * DIM) + column
    given = tl.load(address, mask=inside, other=0.0)
    x = given.to(tl.float32)
    if NORM:
        factor = tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)
        x = x * factor[:, None] * tl.load(weight + column, mask=inside & rotated, other=0.0).to(tl.float32)
    angle = tl.load(positions + token) * (DIM // 2) + pair
    c = tl.load(cos + angle, mask=pair < DIM // 2, other=0.0)[None, :]
    s = tl.load(sin + angle, mask=pair < DIM // 2, other=0.0)[None, :]
    even, odd = tl.split(tl.reshape(x, (AT_ONCE, PAD // 2, 2)))
    x = tl.reshape(tl.join(even * c - odd * s, even * s + odd * c), (AT_ONCE, PAD))
    result = tl.where(rotated, x.to(given.dtype), given)
    tl.store(address, result, mask=inside & (head < HEADS)[:, None])
    slot = tl.load(slots + token).to(tl.int64)
    cached = inside & (head >= HEADS)[:, None]
    tl.store(pool + slot * (2 * KV * DIM) + (column - HEADS * DIM), result, mask=cached)


@triton.jit
def _add_norm(x, residual, weight, out, eps, HIDDEN: tl.constexpr, PAD: tl.constexpr, ADDS: tl.constexpr):
    token, i = tl.program_id(0).to(tl.int64), tl.arange(0, PAD)
    inside = i < HIDDEN
    total = tl.load(residual + token * HIDDEN + i, mask=inside, other=0.0)
    factor = tl.load(weight + i, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        added = total.to(tl.float32) + tl.load(x + token * HIDDEN + i, mask=inside, other=0.0).to(tl.float32)
        total = added.to(total.dtype)
        tl.store(residual + token * HIDDEN + i, total, mask=inside)
    wide = total.to(tl.float32)
    normed = wide * tl.rsqrt(tl.sum(wide * wide, 0) / HIDDEN + eps) * factor
    tl.store(out + token * HIDDEN + i, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _silu_mul(gate_up, out, MLP: tl.constexpr, CHUNK: tl.constexpr):
    token, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    gate = tl.load(gate_up + token * (2 * MLP) + i, mask=i < MLP, other=0.0).to(tl.float32)
    up = tl.load(gate_up + token * (2 * MLP) + MLP + i, mask=i < MLP, other=0.0).to(tl.float32)
    result = tl.div_rn(gate, 1.0 + tl.exp(-gate)) * up
    tl.store(out + token * MLP + i, result.to(out.dtype.element_ty), mask=i < MLP)


def attend(queries: torch.Tensor, pool: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
    """Attention [T, heads * dim] of `queries` of that shape to one layer's `pool` [slots, 2 * kv_heads * dim].

    A slot holds keys and then values; those of the pass must be stored. The result is 0 for padding.
    """
    heads, window, workspace = plan.heads, plan.window or 0, plan.workspace
    shape = len(queries), heads.query * heads.dim
    # Keys of a step take 16 KiB at dimension 128, and so do its values. In 16 bits two more steps are in flight (of
    # five stages two load the blocks), in two programs per processor: four times its share of bandwidth times latency,
    # which is 30 KiB.
    wide = pool.dtype.itemsize > 2
    keys, warps, stages = (32, 8, 3) if wide else (64, 4, 5)
    form = {
        "GROUP": heads.group, "KV": heads.kv, "DIM": heads.dim, "PAD": max(16, triton.next_power_of_2(heads.dim)),
        "BLOCK": plan.block_size, "RUN": math.gcd(plan.block_size, keys), "KEYS": keys, "LINES": tile_lines(heads),
        "WINDOW": window, "num_warps": warps, "num_stages": stages,
    }  # fmt: skip
    seen, scale = (plan.base, plan.seen, plan.slots, plan.positions), plan.scale / math.log(2.0)
    if workspace is None:
        out = queries.new_zeros(shape)
        _attend_tile[heads.kv, len(plan.tiles)](
            queries, queries.stride(0), pool, out, plan.tiles, plan.lists, *seen, scale, **form, **_EXACT
        )
        return out
    out, sums = queries.new_empty(shape), (workspace.sums, workspace.peaks, workspace.totals)
    splits = workspace.peaks.shape[-1]
    _attend_items[heads.kv, plan.programs](
        queries, queries.stride(0), pool, plan.tiles, plan.lists, plan.num_items, *seen, *sums, splits, scale,
        **form, **_EXACT,
    )  # fmt: skip
    _merge_splits[len(queries), heads.query](
        out, plan.base, plan.seen, plan.positions, *sums, splits,
        HEADS=heads.query, DIM=heads.dim, PAD=triton.next_power_of_2(heads.dim),
        SPLITS=triton.next_power_of_2(splits), WINDOW=window, num_warps=1, **_EXACT,
    )  # fmt: skip
    return out


def rope_store(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    pool: torch.Tensor,
    norm: HeadNorm | None = None,
) -> torch.Tensor:
    """Queries [T, heads * dim], normalised and rotated, as a view of `qkv` [T, (heads + 2 * kv_heads) * dim].

    Keys, treated alike, and values are stored to `slots` [T] of `pool`; what `qkv` then holds of them is undefined.
    `cos` and `sin` are float32 [context, dim / 2] of pairs of adjacent numbers, `positions` int32 [T].
    """
    dim = 2 * cos.shape[1]
    heads, kv = (qkv.shape[1] - pool.shape[1]) // dim, pool.shape[1] // dim // 2
    weight, eps = (qkv, 0.0) if norm is None else norm
    _rope_store[len(qkv), triton.cdiv(heads + 2 * kv, HEADS_AT_ONCE)](
        qkv, cos, sin, positions, slots, pool, weight, eps,
        HEADS=heads, KV=kv, DIM=dim, PAD=triton.next_power_of_2(dim), AT_ONCE=HEADS_AT_ONCE, NORM=norm is not None,
        num_warps=4, **_EXACT,
    )  # fmt: skip
    return qkv[:, : heads * dim]


def add_norm(x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS norm [T, hidden], in the weight's dtype, of `residual`, to which `x` is added in place first if given.

    A program has a whole token in registers, 16 numbers a thread.
    """
    out, pad = weight.new_empty(residual.shape), triton.next_power_of_2(len(weight))
    _add_norm[(len(residual),)](
        residual if x is None else x, residual, weight, out, eps,
        HIDDEN=len(weight), PAD=pad, ADDS=x is not None, num_warps=min(16, max(1, pad // 512)), **_EXACT,
    )  # fmt: skip
    return out


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up [T, mlp] of `gate_up` [T, 2 * mlp]."""
    mlp = gate_up.shape[1] // 2
    out = gate_up.new_empty((len(gate_up), mlp))
    _silu_mul[len(gate_up), triton.cdiv(mlp, CHUNK)](gate_up, out, MLP=mlp, CHUNK=CHUNK, num_warps=4, **_EXACT)
    return out
