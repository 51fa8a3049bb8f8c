"""`ops.apply_rules` as a Triton kernel; see `kernels`. One program for each position: only those with rules do work."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from adaptspec.gpu.ops import RuledPositions, RuledRows, RuleTables
from adaptspec.models.processors import MIN_TEMPERATURE

# Logits that a program has in registers at a time: 8 for each of its threads.
CHUNK, WARPS = 2048, 8
_MIN_TEMPERATURE = tl.constexpr(MIN_TEMPERATURE)


@triton.jit
def _ordered(score):
    """Whole numbers in [0, 2^32) in the order of the scores."""
    bits = score.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648


@triton.jit
def _least_kept(at, width, divisor, peak, floor, goal, MASS: tl.constexpr, CHUNK: tl.constexpr):
    """The largest number such that so much lies at or above it: `goal` scores, or that share of what is above `floor`.

    Three of its bits are found at a time.
    """
    digit = tl.arange(0, 8)
    found = floor * 0
    for step in range(11):
        shift = 30 - 3 * step
        least = found + (digit.to(tl.int64) << shift)
        sums = tl.zeros((8,), tl.float32)
        for start in range(0, width, CHUNK):
            token = start + tl.arange(0, CHUNK)
            score = tl.load(at + token, mask=token < width, other=-float("inf"))
            key = _ordered(score)
            if MASS:
                weight = tl.where(key >= floor, tl.exp(tl.div_rn(score - peak, tl.zeros_like(score) + divisor)), 0.0)
            else:
                weight = (token < width).to(tl.float32)
            sums += tl.sum(tl.where(key[None, :] >= least[:, None], weight[None, :], 0.0), 1)
        if MASS and step == 0:
            # A normal number: Triton 3.6 takes smaller ones for doubles.
            goal = tl.maximum(goal * tl.sum(tl.where(digit == 0, sums, 0.0), 0), 1e-37)
        found += tl.max(tl.where(sums >= goal, digit, 0), 0).to(tl.int64) << shift
    return found


@triton.jit
def _apply_rules(
    logits, stride, index, before, aside, mask_lines, lines, temperatures, penalties, top_k, cuts, drafted, depth,
    counts, bias, masks, words, vocab, width, CHUNK: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0)
    row = tl.load(index + position)
    line = tl.load(lines + row)
    if line < 0:
        return
    at = logits + position.to(tl.int64) * stride
    mask_line, ahead = tl.load(mask_lines + position), tl.load(before + position)
    repetition, frequency = tl.load(penalties + row * 3), tl.load(penalties + row * 3 + 1)
    presence = tl.load(penalties + row * 3 + 2)
    peak = -float("inf")
    for start in range(0, width, CHUNK):
        token = start + tl.arange(0, CHUNK)
        inside = token < width
        score = tl.load(at + token, mask=inside, other=-float("inf"))
        word = tl.load(counts + line * vocab + token, mask=inside, other=0)
        count = (word >> 1) + (token == tl.load(aside + position)).to(tl.int32)
        for place in range(ahead):
            count += (tl.load(drafted + row * depth + place) == token).to(tl.int32)
        there = tl.minimum(count, 1)
        factor = tl.maximum(there, word & 1).to(tl.float32) * (repetition - 1.0) + 1.0
        score = tl.div_rn(tl.where(score < 0.0, 0.0, score), factor) + tl.where(score > 0.0, 0.0, score) * factor
        score = score - frequency * count.to(tl.float32) - presence * there.to(tl.float32)
        score += tl.load(bias + line * vocab + token, mask=inside, other=0.0)
        if mask_line >= 0:
            word = tl.load(masks + mask_line * words + (token >> 5), mask=inside, other=0)
            score = tl.where(((word >> (token & 31)) & 1) == 1, score, -float("inf"))
        tl.store(at + token, score, mask=inside)
        peak = tl.maximum(peak, tl.max(score, 0))
    tl.debug_barrier()  # what other threads wrote is read next
    rank, share, least = tl.load(top_k + row), tl.load(cuts + row * 2), tl.load(cuts + row * 2 + 1)
    if (rank > 0) | (share < 1.0) | (least > -float("inf")):
        temperature = tl.load(temperatures + row)
        divisor = tl.where(temperature > 0.0, tl.maximum(temperature, _MIN_TEMPERATURE), 1.0)
        kept = rank * 0
        if rank > 0:
            kept = _least_kept(at, width, divisor, peak, kept, rank.to(tl.float32), False, CHUNK)
        if share < 1.0:
            kept = tl.maximum(kept, _least_kept(at, width, divisor, peak, kept, share, True, CHUNK))
        floor = peak + least * divisor
        for start in range(0, width, CHUNK):
            token = start + tl.arange(0, CHUNK)
            score = tl.load(at + token, mask=token < width, other=0.0)
            out = (_ordered(score) < kept) | (score < floor)
            tl.store(at + token, tl.where(out, -float("inf"), score), mask=token < width)


def apply_rules(logits: torch.Tensor, at: RuledPositions, rows: RuledRows, tables: RuleTables) -> None:
    """See `ops.apply_rules`. Thresholds are found digit by digit, as a sort would take ten times as long."""
    lines, temperatures, penalties, top_k, cuts, drafted = rows
    width, vocab = min(logits.shape[1], tables.counts.shape[1]), tables.counts.shape[1]
    _apply_rules[(len(logits),)](
        logits, logits.stride(0), *at, lines, temperatures, penalties, top_k, cuts,
        drafted, drafted.shape[1], tables.counts, tables.bias, tables.masks, tables.masks.shape[1], vocab, width,
        CHUNK=min(CHUNK, triton.next_power_of_2(width)), num_warps=WARPS, enable_fp_fusion=False,
    )  # fmt: skip
