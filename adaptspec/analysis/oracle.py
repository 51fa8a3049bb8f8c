"""References in hindsight: fixed depths, each request at its own best depth, and the clairvoyant oracle.

All read the same tape and costs as the simulator. No causal policy reaches the oracle, which knows every agreement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from adaptspec.analysis.clairvoyant import RowCosts, alone, plan_seconds, shares
from adaptspec.simulation.cost_profiles import MachineCosts
from adaptspec.simulation.replay import replay, static_spec
from adaptspec.simulation.scenarios import Stream, phases_of
from adaptspec.simulation.simulator import SimulatorSettings
from adaptspec.simulation.tape import Tape
from adaptspec.types import FloatArray

TIERS = (0, 1, 2, 3, 4, 5, 6, 7)


@dataclass(frozen=True)
class Tier:
    """A fixed setting: always this depth with this drafter; depth 0 is plain decoding."""

    depth: int
    drafter: str

    def __str__(self) -> str:
        return "off" if not self.depth else f"{self.drafter} at {self.depth}"


@dataclass(frozen=True)
class References:
    """Goodputs in tokens per second of what a policy is compared with, over one stream.

    `per_request_best` is None where requests share rounds; `clairvoyant` is the exact optimum at batch 1, an upper
    bound on any policy's goodput at larger fixed batch sizes (see `row_costs.shares`), None where the size varies.
    `per_phase_best` is each phase at its own best tier; None where traffic does not shift. `phase_seconds` [N] are what
    the requests of the stream then take, where they have rounds to themselves.
    """

    tiers: Mapping[Tier, float]
    per_request_best: float | None
    clairvoyant: float | None
    per_phase_best: float | None = None
    phase_seconds: FloatArray | None = None

    @property
    def off(self) -> float:
        """Plain decoding."""
        return next(goodput for tier, goodput in self.tiers.items() if not tier.depth)

    @property
    def best(self) -> Tier:
        """The best fixed setting in hindsight, off included."""
        return max(self.tiers, key=lambda tier: self.tiers[tier])

    @property
    def best_static(self) -> float:
        """Its goodput."""
        return self.tiers[self.best]

    def gap_closed(self, goodput: float) -> float | None:
        """(policy - best static) / (clairvoyant - best static); None without an oracle, or where there is no gap."""
        if self.clairvoyant is None or self.clairvoyant <= self.best_static * (1.0 + 1e-9):
            return None
        return (goodput - self.best_static) / (self.clairvoyant - self.best_static)


def references(
    stream: Stream,
    costs: MachineCosts,
    drafters: Sequence[str] = ("draft-model",),
    settings: SimulatorSettings = SimulatorSettings(),
    depths: Sequence[int] = TIERS,
) -> References:
    """All references over a stream, for tiers of these drafters; noise in the settings is left out."""
    tiers = [Tier(depth, name) for i, name in enumerate(drafters) for depth in sorted({0, *depths}) if depth or not i]
    batch, tape = stream.schedule.fixed, stream.tape
    if batch is None or settings.prefill_tokens:
        known, phased = _all_replayed(tiers, stream, costs, settings)
        return References(known, None, None, phased)
    times = np.bincount(np.array(stream.order), minlength=len(tape))
    tokens = float((times * (tape.lengths - 1)).sum())
    asked = np.flatnonzero(times).tolist()
    priced = _priced(costs, drafters, max(depths), batch)
    # Each way of sharing gives a bound; the one that promises the least goodput is the tightest.
    plan = max(sum(float(times[r]) * plan_seconds(tape, r, rows) for r in asked) for rows in priced)
    most = settings.catch_up_tokens
    if batch > 1:
        known, phased = _all_replayed(tiers, stream, costs, settings)
        return References(known, None, tokens / plan, phased)
    alone_at = {
        tier: np.array([times[r] * tier_seconds(tape, r, tier, priced[0][tier.drafter], most) for r in asked])
        for tier in tiers
    }
    own_best = np.min(list(alone_at.values()), axis=0).sum()
    known = {tier: float(tokens / seconds.sum()) for tier, seconds in alone_at.items()}
    phases = phases_of(stream)
    if not phases:
        return References(known, float(tokens / own_best), tokens / plan)
    place = np.searchsorted(asked, stream.order)
    each = np.array([seconds / times[asked] for seconds in alone_at.values()])[:, place]  # [tiers, N]
    best = np.concatenate([each[each[:, p.start : p.end].sum(axis=1).argmin(), p.start : p.end] for p in phases])
    return References(known, float(tokens / own_best), tokens / plan, float(tokens / best.sum()), best)


def tier_seconds(tape: Tape, request: int, tier: Tier, row: RowCosts, catch_up_tokens: int = 512) -> float:
    """Decoding one request alone at one depth throughout, after its first token: exactly what the simulator counts.

    A draft model reads the prompt first, at most `catch_up_tokens` a round, and drafts in the round that ends it.
    """
    view = tape.views[tier.drafter]
    start, length = int(tape.offsets[request]), int(tape.lengths[request])
    run, reach = view.run[start : start + length].tolist(), view.reach[start : start + length].tolist()
    prompt, most = int(tape.prompt_tokens[request]), int(tape.max_tokens[request])
    at, seconds, read, cold = 1, 0.0, 0, row.runs_model
    while at < length:
        asked = min(tier.depth, most - at - 1)
        drafted = min(asked, reach[at])
        if asked and cold:
            missing = prompt + at - read
            read += min(missing, catch_up_tokens)
            cold = missing > catch_up_tokens
            seconds += row.catch_up * max(0, min(missing, catch_up_tokens) - 2)
            if cold:
                seconds += row.reading(prompt + at)
                at += 1
                continue
        seconds += row.round(prompt + at, drafted, asked)
        at += min(run[at], drafted) + 1
    return seconds


def _all_replayed(
    tiers: Sequence[Tier], stream: Stream, costs: MachineCosts, settings: SimulatorSettings
) -> tuple[dict[Tier, float], float | None]:
    """Each tier's goodput over the stream, and that of each phase at its best one, served by itself."""
    known = {tier: _replayed(tier, stream, costs, settings) for tier in tiers}
    phases = phases_of(stream)
    if not phases:
        return known, None
    seconds, tokens = 0.0, 0.0
    for phase in phases:
        part = phase.of(stream)
        best = max(_replayed(tier, part, costs, settings) for tier in tiers)
        emitted = float((part.tape.lengths[list(part.order)] - 1).sum())
        seconds, tokens = seconds + emitted / best, tokens + emitted
    return known, tokens / seconds


def _replayed(tier: Tier, stream: Stream, costs: MachineCosts, settings: SimulatorSettings) -> float:
    return replay(static_spec(tier.depth, tier.drafter), stream, costs, replace(settings, noise=0.0)).goodput


def _priced(costs: MachineCosts, drafters: Sequence[str], deepest: int, batch: int) -> list[Mapping[str, RowCosts]]:
    """What a row's round costs by drafter: exactly, for one row; else every way of sharing a round that is a bound."""
    if batch == 1:
        return [{drafter: alone(costs, drafter, deepest) for drafter in drafters}]
    each = [shares(costs, drafter, deepest, batch) for drafter in drafters]
    return [dict(zip(drafters, way, strict=True)) for way in zip(*each, strict=True)]
