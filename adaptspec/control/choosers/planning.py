"""The joint choice of depths: which drafted tokens of which rows earn more than they cost, all rows at once.

Pure arithmetic on survival and seconds; knows neither where they come from nor what becomes of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaptspec.types import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Market:
    """What tokens bring and cost this round, for B rows and D positions.

    `gains` [B, D]: tokens that drafting position j is expected to add (survival); `sizes` [B, D]: how likely position
    j is drafted at all once allowed (1 without a stop rule). Times are seconds.
    """

    gains: FloatArray
    sizes: FloatArray
    tiers: IntArray  # depths allowed beside 0, ascending
    limits: IntArray  # [B]
    entry: FloatArray  # [B] for a row to draft at all: catching up
    base_tokens: float  # emitted anyway: one per decoding row
    plain: float  # a round without drafts
    plain_overhead: float  # what of it is not the verify pass
    overhead: float  # of a round with drafts, beside draft steps and verify
    per_step: float
    per_row: float
    verify: FloatArray  # [B * D + 1] the verify pass with n more tokens


@dataclass(frozen=True)
class Plan:
    """Depths [B] and the goodput they promise, in tokens per second; `off` is that of drafting nothing."""

    depths: IntArray
    goodput: float
    off: float


def best_plan(market: Market) -> Plan:
    """Depths that maximise (base + sum of admitted gains) / T, over every deepest tier and number admitted.

    Within a deepest tier the candidates are prefixes of all (row, tier) steps sorted by gain per token: gains fall
    with the position, so a prefix holds each row's tiers from the bottom.
    """
    if len(market.limits) == 1:
        return plan_of_one(market)
    return plan_of_many(market)


def plan_of_one(market: Market) -> Plan:
    """`best_plan` for one row, in plain Python: a tenth of the time, where a round is shortest."""
    off = market.base_tokens / market.plain
    best, depth = off, 0
    gains, sizes, verify = market.gains[0].tolist(), market.sizes[0].tolist(), market.verify.tolist()
    tiers, limit = set(market.tiers.tolist()), market.limits.item()
    emitted, tokens = market.base_tokens, 0.0
    fixed = market.overhead + market.entry.item()
    for j, (gain, size) in enumerate(zip(gains, sizes, strict=True), start=1):
        emitted += gain
        tokens += size
        if j in tiers and j <= limit:
            low = min(int(tokens), len(verify) - 1)
            high = min(low + 1, len(verify) - 1)
            passes = verify[low] + (tokens - low) * (verify[high] - verify[low])
            goodput = emitted / (fixed + (market.per_step + market.per_row) * tokens + passes)
            if goodput > best:
                best, depth = goodput, j
    return Plan(np.array([depth]), best, off)


def plan_of_many(market: Market) -> Plan:
    """`best_plan` for any number of rows, vectorised."""
    off = market.base_tokens / market.plain
    rows, blocks = len(market.limits), len(market.tiers)
    nothing = Plan(np.zeros(rows, dtype=np.int64), off, off)
    if not blocks or not rows:
        return nothing
    gains, sizes = _blocks(market.gains, market.tiers), _blocks(market.sizes, market.tiers)
    allowed = market.tiers <= market.limits[:, None]
    # Tier-major and stable: on a tie the lower tier of a row comes first.
    worth = np.minimum.accumulate(gains / np.maximum(sizes, 1e-9), axis=1)
    order = np.argsort(-np.where(allowed, worth, -1.0).T.ravel(), kind="stable")
    tier, row = np.divmod(order, rows)
    ok: BoolArray = allowed[row, tier]
    within = (tier <= np.arange(blocks)[:, None]) & ok  # [K, N]
    size = sizes[row, tier]
    tokens = np.cumsum(within * size, axis=1)
    emitted = market.base_tokens + np.cumsum(within * gains[row, tier], axis=1)
    going = np.cumsum(1.0 - np.prod(1.0 - market.sizes, axis=0))[market.tiers - 1]
    seconds = (
        read_curve(market.verify, tokens)
        + market.per_row * tokens
        + (market.overhead + market.per_step * going)[:, None]
    )
    if market.entry.any():
        seconds += np.cumsum(within * np.where(tier == 0, market.entry[row], 0.0), axis=1)
    goodput = within * (emitted / seconds)
    best = int(np.argmax(goodput))
    deepest, last = divmod(best, goodput.shape[1])
    if goodput[deepest, last] <= off:
        return nothing
    admitted = within[deepest, : last + 1]
    counts = np.bincount(row[: last + 1][admitted], minlength=rows)
    depths = np.concatenate(([0], market.tiers))[counts]
    return Plan(depths, float(goodput[deepest, last]), off)


def _blocks(values: FloatArray, tiers: IntArray) -> FloatArray:
    """Sums of [B, D] over the positions that each tier adds to the one below: [B, K]."""
    if len(tiers) == values.shape[1]:
        return values
    total = np.concatenate((np.zeros((len(values), 1)), np.cumsum(values, axis=1)), axis=1)
    upto = total[:, tiers]
    return np.diff(upto, axis=1, prepend=0.0)


def read_curve(curve: FloatArray, at: FloatArray) -> FloatArray:
    """A curve over 0, 1, 2 ... read at fractions."""
    low = np.minimum(at.astype(np.int64), len(curve) - 1)
    high = np.minimum(low + 1, len(curve) - 1)
    return np.asarray(curve[low] + (at - low) * (curve[high] - curve[low]), dtype=np.float64)
