"""The functions of `ops` as Triton kernels: same signatures, one source for every CUDA device from sm_80 on.

Import it only where Triton is: CUDA builds of torch bring it. The tensors must lie on the current device.

A result never depends on what else is in a pass. Sums over the context are made per split of `SPLIT` places and added
in ascending order to what a token has of itself, whether one program walks over a tile's splits or each has its own.
Peaks of scores (in units of log 2) are rounded up to whole numbers: sums are then rescaled by powers of two, without
rounding, so that it does not matter when. Products and sums are not fused: that would be the compiler's choice, another
one for every kernel.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from adaptspec.gpu.choice_kernels import apply_rules, choose, choose_parts, merge_choices
from adaptspec.gpu.ops import HeadNorm
from adaptspec.gpu.plan import BRANCH, SPLIT, AttentionPlan, tile_lines
from adaptspec.gpu.step_kernels import extend_drafts, pass_inputs

__all__ = [
    "add_norm",
    "apply_rules",
    "attend",
    "choose",
    "choose_parts",
    "extend_drafts",
    "merge_choices",
    "pass_inputs",
    "rope_store",
    "silu_mul",
]
# Numbers of one program of `silu_mul`, and heads of one of `rope_store`: 8 or 16 bytes for each of its threads.
CHUNK, HEADS_AT_ONCE = 1024, 8
_BRANCH, _SPLIT = tl.constexpr(BRANCH), tl.constexpr(SPLIT)
_LOWEST = tl.constexpr(-1e30)  # the peak of no scores: finite, so that differences are numbers
_EXACT = {"enable_fp_fusion": False}


@triton.jit
def _power(exponent):
    """2 ** exponent exactly, of whole numbers of at most 0; 0 below -126."""
    return ((tl.maximum(exponent, -127.0) + 127.0).to(tl.int32) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _bits(word):
    """How many bits there are up to the highest one set."""
    length = (word != 0).to(tl.int32)
    for i in tl.static_range(6):
        more = (word >> (32 >> i)) != 0
        length += tl.where(more, 32 >> i, 0)
        word = tl.where(more, word >> (32 >> i), word)
    return length


@triton.jit
def _sum_places(
    query, acc, peak, total, pool, table, first, end, at, bits, oldest, head, scale,
    KV: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr, PLACES: tl.constexpr,
    WINDOW: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Adds the places from `first` to `end`; all queries see all of them if it is not MASKED."""
    d = tl.arange(0, PAD)
    for start in range(first, end, PLACES):
        place = start + tl.arange(0, PLACES)
        inside = (place < end)[:, None] & (d < DIM)[None, :]
        if MASKED:
            block = tl.load(table + place // BLOCK, mask=place < end, other=0)
        else:
            block = tl.load(table + place // BLOCK)
        slot = block.to(tl.int64) * BLOCK + place % BLOCK
        where = pool + slot[:, None] * (2 * KV * DIM) + head * DIM + d[None, :]
        if MASKED or DIM != PAD:
            key = tl.load(where, mask=inside, other=0.0)
            value = tl.load(where + KV * DIM, mask=inside, other=0.0)
        else:
            key = tl.load(where)
            value = tl.load(where + KV * DIM)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if MASKED:
            beyond = place[None, :] - at[:, None]
            half = tl.where(beyond < 32, bits.to(tl.int32)[:, None], (bits >> 32).to(tl.int32)[:, None])
            visible = (beyond < 0) | ((beyond < _BRANCH) & (((half >> (beyond & 31)) & 1) == 1))
            if WINDOW > 0:
                visible = visible & (place[None, :] >= oldest[:, None])
            score = tl.where(visible, score, -float("inf"))
        higher = tl.maximum(peak, tl.ceil(tl.max(score, 1)))
        share = tl.exp2(score - higher[:, None])
        rescale = _power(peak - higher)
        total = total * rescale + tl.sum(share, 1)
        acc = tl.dot(share.to(value.dtype), value, acc * rescale[:, None], input_precision="ieee")
        peak = higher
    return acc, peak, total


@triton.jit
def _leave(sums, peaks, totals, at, acc, peak, total, live, DIM: tl.constexpr, PAD: tl.constexpr):
    """Leaves what was summed of one split for the merge."""
    d = tl.arange(0, PAD)
    tl.store(peaks + at, peak, mask=live)
    tl.store(totals + at, total, mask=live)
    tl.store(sums + at[:, None] * DIM + d[None, :], acc, mask=live[:, None] & (d < DIM)[None, :])


@triton.jit
def _attend(
    queries, stride, pool, out, tiles, base, seen, positions, own, table, table_stride,
    sums, peaks, totals, splits, scale,
    GROUP: tl.constexpr, KV: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
    LINES: tl.constexpr, PLACES: tl.constexpr, WINDOW: tl.constexpr, WALKS: tl.constexpr,
):  # fmt: skip
    """One tile, one head of keys, and every so manieth split of what it sees; the first of them the tokens, too."""
    head = tl.program_id(0)
    tile = tiles + (tl.num_programs(1) - 1 - tl.program_id(1)) * 3  # the end of a prompt, which sees most, first
    count = tl.load(tile + 1)
    if count == 0:
        return
    line, d = tl.arange(0, LINES), tl.arange(0, PAD)
    token = tl.load(tile) + line // GROUP
    at = tl.load(base + token, mask=line < count * GROUP, other=-1)
    live = at >= 0
    bits = tl.load(seen + token, mask=live, other=0)
    oldest = tl.load(positions + token, mask=live, other=0) - (WINDOW - 1)
    index = token.to(tl.int64) * (KV * GROUP) + head * GROUP + line % GROUP  # of a token's head
    inside = live[:, None] & (d < DIM)[None, :]
    where = queries + token.to(tl.int64)[:, None] * stride + ((head * GROUP + line % GROUP) * DIM)[:, None] + d[None, :]
    query = tl.load(where, mask=inside, other=0.0)
    clear, end = tl.min(tl.where(live, at, 2147483647)), tl.max(at + _bits(bits))
    begin = end * 0
    if WINDOW > 0:
        begin = tl.maximum(tl.min(tl.where(live, oldest, 2147483647)), 0)
        clear = begin * 0
    row = table + tl.load(tile + 2) * table_stride
    none, nothing = tl.full((LINES,), _LOWEST, tl.float32), tl.zeros((LINES,), tl.float32)
    zero = tl.zeros((LINES, PAD), tl.float32)
    slot = tl.load(own + token, mask=live, other=0)
    where = pool + slot[:, None] * (2 * KV * DIM) + head * DIM + d[None, :]
    key, value = tl.load(where, mask=inside, other=0.0), tl.load(where + KV * DIM, mask=inside, other=0.0)
    score = tl.sum(query.to(tl.float32) * key.to(tl.float32), 1) * scale
    peak = tl.ceil(score)
    total = tl.exp2(score - peak)
    acc = value.to(tl.float32) * total[:, None]
    if not WALKS:  # noqa: SIM102 - this is settled when it is compiled
        if tl.program_id(2) == 0:
            _leave(sums, peaks, totals, index * splits + splits - 1, acc, peak, total, live, DIM, PAD)
    for split in range(begin // _SPLIT + tl.program_id(2), tl.cdiv(end, _SPLIT), tl.num_programs(2)):
        low = tl.maximum(split * _SPLIT, begin // PLACES * PLACES)
        high = tl.minimum((split + 1) * _SPLIT, end)
        middle = tl.minimum(tl.maximum(clear // PLACES * PLACES, low), high)
        a, p, t = _sum_places(
            query, zero, none, nothing, pool, row, low, middle, at, bits, oldest, head, scale,
            KV, DIM, PAD, BLOCK, PLACES, WINDOW, False,
        )  # fmt: skip
        a, p, t = _sum_places(
            query, a, p, t, pool, row, middle, high, at, bits, oldest, head, scale,
            KV, DIM, PAD, BLOCK, PLACES, WINDOW, True,
        )  # fmt: skip
        if WALKS:
            higher = tl.maximum(peak, p)
            old, new = _power(peak - higher), _power(p - higher)
            acc, total, peak = acc * old[:, None] + a * new[:, None], total * old + t * new, higher
        else:
            _leave(sums, peaks, totals, index * splits + split, a, p, t, live, DIM, PAD)
    if WALKS:
        result = tl.div_rn(acc, total[:, None])
        tl.store(out + index[:, None] * DIM + d[None, :], result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _merge_splits(
    out, base, seen, positions, sums, peaks, totals, splits,
    HEADS: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr, SPLITS: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """One head of one token: itself and then its splits, in ascending order, as `_attend` adds them where it walks."""
    token, last = tl.program_id(0), splits - 1
    d, at = tl.arange(0, PAD), tl.load(base + token)
    index = token.to(tl.int64) * HEADS + tl.program_id(1)
    if at < 0:
        tl.store(out + index * DIM + d, tl.zeros((PAD,), out.dtype.element_ty), mask=d < DIM)
        return
    end = tl.cdiv(at + _bits(tl.load(seen + token)), _SPLIT)
    begin = end * 0
    if WINDOW > 0:
        begin = tl.maximum(tl.load(positions + token) - (WINDOW - 1), 0) // _SPLIT
    split, own = tl.arange(0, SPLITS), index * splits + last
    mine = ((split >= begin) & (split < end)) | (split == last)
    highest = tl.max(tl.load(peaks + index * splits + split, mask=mine, other=_LOWEST), 0)
    rescale = _power(tl.load(peaks + own) - highest)
    acc = tl.load(sums + own * DIM + d, mask=d < DIM, other=0.0) * rescale
    total = tl.load(totals + own) * rescale
    for i in tl.range(begin, end, loop_unroll_factor=8):  # loads of eight splits are under way at a time
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
    place = head[:, None] * DIM + d[None, :]
    inside = (head < HEADS + 2 * KV)[:, None] & (d < DIM)[None, :]
    turns = (head < HEADS + KV)[:, None]
    at = qkv + token.to(tl.int64) * ((HEADS + 2 * KV) * DIM) + place
    given = tl.load(at, mask=inside, other=0.0)
    x = given.to(tl.float32)
    if NORM:
        length = tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)
        x = x * length[:, None] * tl.load(weight + place, mask=inside & turns, other=0.0).to(tl.float32)
    angle = tl.load(positions + token) * (DIM // 2) + pair
    c = tl.load(cos + angle, mask=pair < DIM // 2, other=0.0)[None, :]
    s = tl.load(sin + angle, mask=pair < DIM // 2, other=0.0)[None, :]
    even, odd = tl.split(tl.reshape(x, (AT_ONCE, PAD // 2, 2)))
    turned = tl.reshape(tl.join(even * c - odd * s, even * s + odd * c), (AT_ONCE, PAD))
    result = tl.where(turns, turned.to(given.dtype), given)
    tl.store(at, result, mask=inside & (head < HEADS)[:, None])
    slot = tl.load(slots + token).to(tl.int64)
    kept = inside & (head >= HEADS)[:, None]
    tl.store(pool + slot * (2 * KV * DIM) + (place - HEADS * DIM), result, mask=kept)


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
    """See `ops.attend`.

    Blocks of keys and of values take 16 KiB each at dimension 128. Of 16 bits two more of both are under way (of five
    stages two load the table), in two programs a processor: four times its share of bandwidth times delay, 30 KiB.
    """
    heads, count, window, work = plan.heads, len(queries), plan.window or 0, plan.workspace
    dim, wide = {"DIM": heads.dim, "WINDOW": window, **_EXACT}, pool.dtype.itemsize > 2
    # Programs that walk write no padding; a merge writes all.
    out = (queries.new_zeros if work is None else queries.new_empty)((count, heads.query * heads.dim))
    sums, peaks, totals = (out, out, out) if work is None else (work.sums, work.peaks, work.totals)
    seen, splits = (plan.base, plan.seen, plan.positions), totals.shape[-1]
    _attend[heads.kv, len(plan.tiles), 1 if work is None else plan.programs](
        queries, queries.stride(0), pool, out, plan.tiles, *seen, plan.own, plan.table, plan.table.stride(0),
        sums, peaks, totals, splits, plan.scale / math.log(2.0),
        GROUP=heads.group, KV=heads.kv, PAD=max(16, triton.next_power_of_2(heads.dim)), BLOCK=plan.block,
        LINES=tile_lines(heads), PLACES=32 if wide else 64, WALKS=work is None,
        num_warps=8 if wide else 4, num_stages=3 if wide else 5, **dim,
    )  # fmt: skip
    if work is not None:
        pads = {"PAD": triton.next_power_of_2(heads.dim), "SPLITS": triton.next_power_of_2(splits)}
        _merge_splits[count, heads.query](
            out, *seen, sums, peaks, totals, splits, HEADS=heads.query, num_warps=1, **dim, **pads
        )
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
    """See `ops.rope_store`."""
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
    """See `ops.add_norm`: a whole token in registers, 16 numbers a thread."""
    out, pad = weight.new_empty(residual.shape), triton.next_power_of_2(len(weight))
    _add_norm[(len(residual),)](
        residual if x is None else x, residual, weight, out, eps,
        HIDDEN=len(weight), PAD=pad, ADDS=x is not None, num_warps=min(16, max(1, pad // 512)), **_EXACT,
    )  # fmt: skip
    return out


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See `ops.silu_mul`."""
    mlp = gate_up.shape[1] // 2
    out = gate_up.new_empty((len(gate_up), mlp))
    _silu_mul[len(gate_up), triton.cdiv(mlp, CHUNK)](gate_up, out, MLP=mlp, CHUNK=CHUNK, num_warps=4, **_EXACT)
    return out
