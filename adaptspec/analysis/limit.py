"""The limit L1: what the best fixed depth would be worth if acceptance and cost were all that mattered.

Acceptance is measured as in the engine: survival of position j is the share of rounds whose first j tokens were
accepted, in rounds that all draft equally deep.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaptspec.analysis.oracle import TIERS
from adaptspec.simulation.cost_profiles import MachineCosts
from adaptspec.simulation.tape import Tape
from adaptspec.types import FloatArray, IntArray


def modelled_best(
    tape: Tape, costs: MachineCosts, batch: int, drafter: str = "draft-model", depths: Sequence[int] = TIERS
) -> float:
    """The best fixed depth's goodput over plain decoding's: max over k of (1 + s_1 + ... + s_k) T(0) / T(k).

    s_j is the survival of position j in rounds of depth k (where rounds fall depends on k), T the seconds of a round of
    `batch` rows that hold the tape's mean context.
    Leaves out what the tape's order does to rounds, the ends of requests, and catching up.
    """
    inside = np.repeat(tape.prompt_tokens, tape.lengths - 1) + _within(tape)
    cached = batch * float(inside.mean()) if len(inside) else 0.0
    own = costs.drafters[drafter]

    def seconds(depth: int) -> float:
        drafting = depth * costs.step_seconds(drafter, batch, cached)
        drafting += own.start + own.per_row * batch if depth else 0.0
        return costs.overhead + drafting + costs.verify_seconds(batch, batch * (1 + depth), cached)

    def gained(depth: int) -> float:
        return 1.0 + float(survivals(tape, drafter, depth).sum())

    return max(gained(depth) * seconds(0) / seconds(depth) for depth in {0, *depths})


def survivals(tape: Tape, drafter: str, depth: int) -> FloatArray:
    """Survival of positions 1 to `depth` [depth] in rounds that always draft so deep."""
    counts = np.zeros(depth + 1, dtype=np.int64)
    for start, length in zip(tape.offsets[:-1].tolist(), tape.lengths.tolist(), strict=True):
        run = np.minimum(tape.views[drafter].run[start : start + length], depth).tolist()
        at = 1
        while at < length:
            counts[run[at]] += 1
            at += run[at] + 1
    at_least = np.cumsum(counts[::-1])[::-1]
    return np.asarray(at_least[1:] / max(1, int(at_least[0])), dtype=np.float64)


def emitted_positions(tape: Tape) -> IntArray:
    """Indices of the positions where a round may start: all that are emitted, but each request's first."""
    starts: IntArray = np.repeat(tape.offsets[:-1], tape.lengths - 1)
    return starts + _within(tape)


def _within(tape: Tape) -> IntArray:
    """1, 2, ... length - 1 of each request, one after another."""
    counts = tape.lengths - 1
    ends = np.cumsum(counts)
    within: IntArray = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(ends - counts, counts) + 1
    return within
