"""Sampling rules and the coupled choice of tokens as Triton kernels, for the logits of many positions at once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from adaptspec.gpu.device_sampling import Choice, PositionRules, RuleTables
from adaptspec.models.noise import PAIR_FIRST, PAIR_SECOND, SIGN_AND_LAST, UNIT
from adaptspec.models.sampling import MIN_TEMPERATURE

PART = 1024  # scores of one program of a choice: a vocabulary of 128k has 125 parts, which fill a large device
# Logits that a program of `apply_rules` has in registers at a time: 4 for each of its threads, which fill a processor.
LANES, WARPS = 4096, 32
_MIN_TEMPERATURE = tl.constexpr(MIN_TEMPERATURE)
_FIRST, _SECOND = tl.constexpr(PAIR_FIRST), tl.constexpr(PAIR_SECOND)
_LAST, _UNIT = tl.constexpr(SIGN_AND_LAST), tl.constexpr(UNIT)
_EXACT = {"enable_fp_fusion": False}


@triton.jit
def _reached(listed, held, rows, least, peak, divisor, MASS: tl.constexpr, LANES: tl.constexpr):
    """The number of listed scores that reach `least`, or with MASS their mass; each lane has `held` of `rows`."""
    lane = tl.arange(0, LANES)
    sums = tl.zeros((LANES,), tl.float32)
    for row in range(rows):
        score = tl.load(listed + row * LANES + lane, mask=row < held, other=-float("inf"))
        weight = (row < held).to(tl.float32)
        if MASS:
            weight = tl.exp((score - peak) / divisor)
        sums += tl.where(score >= least, weight, 0.0)
    return tl.sum(sums, 0)


@triton.jit
def _least_kept(listed, held, rows, goal, peak, divisor, MASS: tl.constexpr, LANES: tl.constexpr):
    """The largest score that `goal` of a list reaches, found bit by bit; -inf if the whole list is less than `goal`."""
    one, found = tl.full((), 1, tl.int32), tl.full((), -2147483648, tl.int32)
    kept = tl.full((), -float("inf"), tl.float32)
    goal = tl.maximum(goal, 1e-37)  # a normal number: Triton 3.6 makes doubles of smaller constants
    for step in range(32):
        tried = found ^ (one << (31 - step))  # an integer, ordered as the score with these bits
        least = (tried ^ ((tried >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
        enough = _reached(listed, held, rows, least, peak, divisor, MASS, LANES) >= goal
        found, kept = tl.where(enough, tried, found), tl.where(enough, least, kept)
    return kept


@triton.jit
def _threshold(at, listed, width, peak, divisor, rank, share, LANES: tl.constexpr):
    """The least score that top-k and top-p keep. `listed` holds the peak of each lane, and is overwritten."""
    lane, one = tl.arange(0, LANES), tl.full((LANES,), 1, tl.int32)
    goal = rank.to(tl.float32)
    # All tokens reach at least what the peaks alone reach: no score below this one is kept.
    if rank > 0:
        least = _least_kept(listed, one, 1, goal, peak, divisor, False, LANES)
    else:
        every = (width + LANES - 1 - lane) // LANES
        goal = share * _reached(at, every, tl.cdiv(width, LANES), -float("inf"), peak, divisor, True, LANES)
        least = _least_kept(listed, one, 1, goal, peak, divisor, True, LANES)
    held = one - 1
    for start in range(0, width, LANES):
        token = start + lane
        score = tl.load(at + token, mask=token < width, other=-float("inf"))
        taken = (token < width) & (score >= least)
        tl.store(listed + held * LANES + lane, score, mask=taken)
        held += taken.to(tl.int32)
    tl.debug_barrier()
    rows = tl.max(held, 0)
    if rank > 0:
        least = _least_kept(listed, held, rows, goal, peak, divisor, False, LANES)
        goal = share * _reached(listed, held, rows, least, peak, divisor, True, LANES)
    if share < 1.0:
        least = tl.maximum(least, _least_kept(listed, held, rows, goal, peak, divisor, True, LANES))
    return least


@triton.jit
def _apply_rules(
    logits, stride, lines, temperatures, penalties, top_k, cuts, paths, depth, mask_lines,
    counts, bias, masks, words, vocab, width, listed, LANES: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0)
    line, lane = tl.load(lines + position), tl.arange(0, LANES)
    if line < 0:
        return
    address = logits + position.to(tl.int64) * stride
    listed += position.to(tl.int64) * tl.cdiv(width, LANES) * LANES
    mask_line, paths = tl.load(mask_lines + position), paths + position * depth
    repetition, frequency = tl.load(penalties + position * 3), tl.load(penalties + position * 3 + 1)
    presence = tl.load(penalties + position * 3 + 2)
    peaks = tl.full((LANES,), -float("inf"), tl.float32)
    for start in range(0, width, LANES):
        token = start + lane
        inside = token < width
        score = tl.load(address + token, mask=inside, other=-float("inf"))
        word = tl.load(counts + line * vocab + token, mask=inside, other=0)
        count = word >> 1
        for i in range(depth):
            count += (tl.load(paths + i) == token).to(tl.int32)
        present = tl.minimum(count, 1)
        factor = tl.maximum(present, word & 1).to(tl.float32) * (repetition - 1.0) + 1.0
        score = tl.div_rn(tl.where(score < 0.0, 0.0, score), factor) + tl.where(score > 0.0, 0.0, score) * factor
        score = score - frequency * count.to(tl.float32) - presence * present.to(tl.float32)
        score += tl.load(bias + line * vocab + token, mask=inside, other=0.0)
        if mask_line >= 0:
            word = tl.load(masks + mask_line * words + (token >> 5), mask=inside, other=0)
            score = tl.where(((word >> (token & 31)) & 1) == 1, score, -float("inf"))
        tl.store(address + token, score, mask=inside)
        peaks = tl.maximum(peaks, score)
    tl.store(listed + lane, peaks)
    tl.debug_barrier()  # other threads' writes are read next
    rank, share, ratio = tl.load(top_k + position), tl.load(cuts + position * 2), tl.load(cuts + position * 2 + 1)
    if (rank > 0) | (share < 1.0) | (ratio > -float("inf")):
        temperature, peak = tl.load(temperatures + position), tl.max(peaks, 0)
        divisor = tl.where(temperature > 0.0, tl.maximum(temperature, _MIN_TEMPERATURE), 1.0)
        least = peak + ratio * divisor
        if (rank > 0) | (share < 1.0):
            least = tl.maximum(least, _threshold(address, listed, width, peak, divisor, rank, share, LANES))
        for start in range(0, width, LANES):
            token = start + lane
            score = tl.load(address + token, mask=token < width, other=0.0)
            tl.store(address + token, tl.where(score < least, -float("inf"), score), mask=token < width)


@triton.jit
def _gumbel(word):
    """Gumbel noise of words, each the key of a position xor the key of a token: see `models.noise.gumbel`."""
    word = word * _FIRST
    word = (word ^ (word >> 32)) * _SECOND
    v = (word | _LAST).to(tl.float32) * _UNIT
    # Kahan's log1p, which corrects the rounding of 1 + v.
    near = 1.0 + v
    scale = tl.div_rn(v, tl.where(near == 1.0, -1.0, near - 1.0))
    return -tl.log(-tl.where(near == 1.0, v, tl.log(near) * scale))


@triton.jit
def _choose_parts(
    logits, stride, temperatures, keys, token_keys, numbers, tokens, width,
    PART: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """One part of the vocabulary at one position: five `numbers` and a token for each candidate.

    The numbers are the largest score with noise, and the sum of exp(all others - it); the largest score, the sum of
    exp(score - it), and that sum weighted with score - it. Further candidates are like parts that have no logits.
    """
    part, position = tl.program_id(0), tl.program_id(1)
    token = part * PART + tl.arange(0, PART)
    inside = token < width
    logit = tl.load(logits + position.to(tl.int64) * stride + token, mask=inside, other=-float("inf"))
    temperature = tl.load(temperatures + position)
    divisor = tl.where(temperature > 0.0, tl.maximum(temperature, _MIN_TEMPERATURE), 1.0)
    score = tl.div_rn(logit, tl.zeros_like(logit) + divisor)
    top = tl.max(score, 0)
    removed = score == -float("inf")
    below = tl.where(removed, 0.0, score - top)
    share = tl.where(removed, 0.0, tl.exp(below))
    noisy = score
    if temperature > 0.0:
        noisy = score + _gumbel(tl.load(keys + position) ^ tl.load(token_keys + token, mask=inside, other=0))
    best = tl.max(noisy, 0)
    total = tl.sum(tl.where(removed, 0.0, tl.exp(noisy - best)), 0)
    shares, weighted = tl.sum(share, 0), tl.sum(share * below, 0)
    count = tl.num_programs(0) * tl.num_programs(1) * CANDIDATES
    for rank in tl.static_range(CANDIDATES):
        at = (position * tl.num_programs(0) + part) * CANDIDATES + rank
        # The first of equals; if no score is a number, still a token of the vocabulary.
        chosen = tl.min(tl.where(inside & (noisy == best), token, 2147483647), 0)
        tl.store(numbers + at, best)
        tl.store(numbers + count + at, total)
        tl.store(numbers + 2 * count + at, top)
        tl.store(numbers + 3 * count + at, shares)
        tl.store(numbers + 4 * count + at, weighted)
        tl.store(tokens + at, tl.where(chosen == 2147483647, part * PART, chosen))
        noisy = tl.where(token == chosen, -float("inf"), noisy)
        best, total, top, shares, weighted = tl.max(noisy, 0), 0.0, -float("inf"), 0.0, 0.0


@triton.jit
def _merge_choices(numbers, tokens, token, confidence, entropy, parts, PAD: tl.constexpr, CANDIDATES: tl.constexpr):
    """All parts at one position."""
    position = tl.program_id(0)
    count = tl.num_programs(0) * parts
    part = tl.arange(0, PAD)
    inside, at = part < parts, position * parts + part
    best = tl.load(numbers + at, mask=inside, other=-float("inf"))
    total = tl.load(numbers + count + at, mask=inside, other=0.0)
    top = tl.load(numbers + 2 * count + at, mask=inside, other=-float("inf"))
    share = tl.load(numbers + 3 * count + at, mask=inside, other=0.0)
    weighted = tl.load(numbers + 4 * count + at, mask=inside, other=0.0)
    found = tl.load(tokens + at, mask=inside, other=0)
    leading, peak = tl.max(best, 0), tl.max(top, 0)
    every = tl.sum(total * tl.exp(best - leading), 0)
    for rank in tl.static_range(CANDIDATES):
        at, most = position * CANDIDATES + rank, tl.max(best, 0)
        chosen = tl.min(tl.where(inside & (best == most), found, 2147483647), 0)
        tl.store(token + at, tl.where(chosen == 2147483647, tl.max(found, 0), chosen))
        tl.store(confidence + at, tl.div_rn(tl.exp(most - leading), every))
        best = tl.where(found == chosen, -float("inf"), best)
    scale, below = tl.exp(top - peak), tl.where(top == -float("inf"), 0.0, top - peak)
    shares = tl.sum(share * scale, 0)
    mean = tl.div_rn(tl.sum((weighted + share * below) * scale, 0), shares)
    tl.store(entropy + position, tl.log(shares) - mean)


def apply_rules(logits: torch.Tensor, rules: PositionRules, tables: RuleTables) -> None:
    """Apply penalties, biases, masks and truncation to float32 `logits` [N, width] in place; removed ones become -inf.

    Logits are not divided by the temperature. Columns beyond the vocabulary of the tables stay as they are.

    Only programs of positions with rules do work. They read the logits to change them, for top-p to sum their mass, to
    list the scores among which the thresholds lie (usually some hundreds of 128k, which are read for each bit of a
    threshold), and to remove what is below. Each lane has a list of its own in the order of its tokens: so the order of
    sums does not depend on what else is in the pass.
    """
    width, vocab = min(logits.shape[1], tables.counts.shape[1]), tables.counts.shape[1]
    lanes = min(LANES, triton.next_power_of_2(width))
    listed = logits.new_empty((len(logits), triton.cdiv(width, lanes) * lanes))
    _apply_rules[(len(logits),)](
        logits, logits.stride(0), rules.lines, rules.temperatures, rules.penalties, rules.top_k, rules.cuts,
        rules.paths, rules.paths.shape[1], rules.masks,
        tables.counts, tables.bias, tables.masks, tables.masks.shape[1], vocab, width, listed,
        LANES=lanes, num_warps=WARPS, **_EXACT,
    )  # fmt: skip


def choose(
    logits: torch.Tensor, temperatures: torch.Tensor, keys: torch.Tensor, token_keys: torch.Tensor, candidates: int = 1
) -> Choice:
    """The `candidates` tokens with the largest logits / temperature + noise; no noise at temperature 0.

    `logits` float32 [N, width], `temperatures` float32 [N], `keys` int64 [N] of `models.noise.position_keys`,
    `token_keys` int64 [V]: logits beyond V are ignored. The first of equal scores wins. Each logit is read once.
    """
    count, width = len(logits), min(logits.shape[1], len(token_keys))
    parts = triton.cdiv(width, PART)
    numbers = logits.new_empty((5, count, parts * candidates))
    tokens = keys.new_empty((count, parts * candidates), dtype=torch.int32)
    _choose_parts[parts, count](
        logits, logits.stride(0), temperatures, keys, token_keys, numbers, tokens, width,
        PART=PART, CANDIDATES=candidates, num_warps=4, **_EXACT,
    )  # fmt: skip
    token, confidence = tokens.new_empty((count, candidates)), logits.new_empty((count, candidates))
    entropy = logits.new_empty(count)
    _merge_choices[(count,)](
        numbers, tokens, token, confidence, entropy, parts * candidates,
        PAD=triton.next_power_of_2(parts * candidates), CANDIDATES=candidates, num_warps=1 if candidates == 1 else 4,
        **_EXACT,
    )  # fmt: skip
    return Choice(token, confidence, entropy)
