"""References in hindsight: fixed settings, each request at its own best one, and the clairvoyant plan.

All read the same tape and costs as the simulator. No causal policy reaches the clairvoyant plan, which knows every
agreement: dynamic programming over output positions, from the last to the first. It is exact for a request alone, with
what a draft model has missed counted as read in the round that drafts again (the engine reads at most 512 tokens a
round: where a lag is longer, the true optimum is a little slower than this). In a batch it is priced with shares of
rounds that no round of at most so many rows can undercut, so that it is at most as slow as any real plan: see `shares`.

Where policies let drafts branch, fixed settings have widths as well (alone; in a batch the chains stand for them), and
the plan knows the ranks: behind its chain's wrong token it takes the right one from its next candidates, one node each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from adaptspec.arrays import FloatArray
from adaptspec.errors import ConfigError
from adaptspec.simulation.machine import Machine
from adaptspec.simulation.scenarios import Stream, phases_of
from adaptspec.simulation.simulator import SimulatorSettings, replay, static_spec
from adaptspec.simulation.tape import DraftView, Tape, run_lengths

_NEVER = float("inf")
TIERS = (0, 1, 2, 3, 4, 5, 6, 7)
_WIDTHS = (2, 4, 8)
# The ceiling of a policy that says none.
_MOST_NODES = 64


@dataclass(frozen=True)
class Tier:
    """A fixed setting: always this depth with this drafter; depth 0 is plain decoding. With a width, so many candidates
    for each token of a chain.
    """

    depth: int
    drafter: str
    width: int = 1

    def __str__(self) -> str:
        wide = f", {self.width} wide" if self.width > 1 else ""
        return f"{self.drafter} at {self.depth}{wide}" if self.depth else "off"


@dataclass(frozen=True)
class References:
    """Goodputs in tokens per second of what a policy is compared with, over one stream.

    `per_request_best` is None where requests share rounds; `clairvoyant` is the exact optimum at batch 1, an upper
    bound on any policy's goodput at larger fixed batch sizes (see `shares`), None where the size varies.
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
        return next(goodput for tier, goodput in self.tiers.items() if not tier.depth)

    @property
    def best(self) -> Tier:
        """The best fixed setting in hindsight, off included."""
        return max(self.tiers, key=lambda tier: self.tiers[tier])

    @property
    def best_static(self) -> float:
        return self.tiers[self.best]

    def gap_closed(self, goodput: float) -> float | None:
        """(policy - best static) / (clairvoyant - best static); None without an oracle, or where there is no gap."""
        if self.clairvoyant is None or self.clairvoyant <= self.best_static * (1.0 + 1e-9):
            return None
        return (goodput - self.best_static) / (self.clairvoyant - self.best_static)


def references(
    stream: Stream,
    machine: Machine,
    drafters: Sequence[str] = ("draft-model",),
    settings: SimulatorSettings = SimulatorSettings(),
    depths: Sequence[int] = TIERS,
    *,
    width: int = 1,
) -> References:
    """All references over a stream, for tiers of these drafters; noise in the settings is left out. `width` is how many
    candidates a policy may submit for one position.
    """
    tiers = [Tier(depth, name) for i, name in enumerate(drafters) for depth in sorted({0, *depths}) if depth or not i]
    batch, tape = stream.schedule.fixed, stream.tape
    if batch is None or settings.prefill_tokens:
        known, phased = _all_replayed(tiers, stream, machine, settings)
        return References(known, None, None, phased)
    times = np.bincount(np.array(stream.order), minlength=len(tape))
    tokens = float((times * (tape.lengths - 1)).sum())
    asked = np.flatnonzero(times).tolist()
    wide = [Tier(depth, name, w) for name in drafters for w in _WIDTHS if w <= width for depth in depths if depth]
    wide = [tier for tier in wide if batch == 1 and tape.views[tier.drafter].top is not None]
    nodes = max([max(depths) + (width > 1), *(min(tier.depth * tier.width, _MOST_NODES) for tier in wide)])
    priced = _priced(machine, drafters, batch, max(depths), nodes)
    # Each way of sharing gives a bound; the one that promises the least goodput is the tightest.
    plan = max(sum(float(times[r]) * plan_seconds(tape, r, rows, width) for r in asked) for rows in priced)
    most = settings.catch_up_tokens
    if batch > 1:
        known, phased = _all_replayed(tiers, stream, machine, settings)
        return References(known, None, tokens / plan, phased)
    alone_at = {
        tier: np.array([times[r] * tier_seconds(tape, r, tier, priced[0][tier.drafter], most) for r in asked])
        for tier in (*tiers, *wide)
    }
    own_best = np.min(list(alone_at.values()), axis=0).sum()
    known = {tier: float(tokens / seconds.sum()) for tier, seconds in alone_at.items()}
    phases = phases_of(stream)
    if not phases:
        return References(known, float(tokens / own_best), tokens / plan)
    index = np.searchsorted(asked, stream.order)
    each = np.array([seconds / times[asked] for seconds in alone_at.values()])[:, index]  # [tiers, N]
    best = np.concatenate([each[each[:, p.start : p.end].sum(axis=1).argmin(), p.start : p.end] for p in phases])
    return References(known, float(tokens / own_best), tokens / plan, float(tokens / best.sum()), best)


def tier_seconds(tape: Tape, request: int, tier: Tier, row: RowCosts, catch_up_tokens: int = 512) -> float:
    """Decoding one request alone at one depth throughout, after its first token: exactly what the simulator counts. A
    draft model reads the prompt first, at most `catch_up_tokens` a round, and drafts in the round that ends it.
    """
    view = tape.views[tier.drafter]
    start, length = int(tape.offsets[request]), int(tape.lengths[request])
    run, reach, rank = (part[start : start + length].tolist() for part in (view.run, view.reach, view.rank))
    before = _siblings(view, slice(start, int(tape.offsets[request + 1])), tier)
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
        side, kept = min(before[at + drafted] - before[at], _MOST_NODES - drafted), min(run[at], drafted)
        seconds += row.round(prompt + at, drafted, asked, side)
        if side and kept < drafted and at + kept < length:  # side nodes come in the order of their depths
            siblings, earlier = before[at + kept + 1] - before[at + kept], before[at + kept] - before[at]
            kept += 0 < rank[at + kept] <= min(siblings, side - earlier)
        at += kept + 1
    return seconds


def _siblings(view: DraftView, recorded: slice, tier: Tier) -> list[int]:
    """Candidates next to a chain's tokens, summed over the positions of a request before each one, and past its end. A
    drafter that counts may have none.
    """
    top = None if view.top is None else view.top[recorded, 1 : tier.width]
    if top is None or not top.shape[1]:
        return [0] * (recorded.stop - recorded.start + tier.depth + 1)
    each = np.logical_and.accumulate(top > 0.0, axis=1).sum(axis=1)
    return list(np.concatenate(([0], each, np.full(tier.depth, each[-1]))).cumsum().tolist())


def _all_replayed(
    tiers: Sequence[Tier], stream: Stream, machine: Machine, settings: SimulatorSettings
) -> tuple[dict[Tier, float], float | None]:
    """Each tier's goodput over the stream, and that of each phase at its best one, served by itself."""
    known = {tier: _replayed(tier, stream, machine, settings) for tier in tiers}
    phases = phases_of(stream)
    if not phases or any(phase.end - phase.start < phase.rows for phase in phases):  # too short to fill its batch
        return known, None
    seconds, tokens = 0.0, 0.0
    for phase in phases:
        part = phase.of(stream)
        best = max(_replayed(tier, part, machine, settings) for tier in tiers)
        emitted = float((part.tape.lengths[list(part.order)] - 1).sum())
        seconds, tokens = seconds + emitted / best, tokens + emitted
    return known, tokens / seconds


def _replayed(tier: Tier, stream: Stream, machine: Machine, settings: SimulatorSettings) -> float:
    return replay(static_spec(tier.depth, tier.drafter), stream, machine, replace(settings, noise=0.0)).goodput


def _priced(
    machine: Machine, drafters: Sequence[str], batch: int, deepest: int, nodes: int
) -> list[Mapping[str, RowCosts]]:
    """What a row's round costs by drafter: exactly, for one row; else every way of sharing a round that is a bound."""
    if batch == 1:
        return [{drafter: alone(machine, drafter, deepest, nodes) for drafter in drafters}]
    each = [shares(machine, drafter, deepest, batch, nodes) for drafter in drafters]
    return [dict(zip(drafters, way, strict=True)) for way in zip(*each, strict=True)]


@dataclass(frozen=True)
class RowCosts:
    """Seconds of a row's round. `verify[n]` is for n drafted tokens, overhead included, `steps[n]` for n steps;
    cached tokens come on top: `per_cached` for each the target attends to, `draft_per_cached` for each of a draft step.
    """

    verify: Sequence[float]
    steps: Sequence[float]  # n draft steps in all
    catch_up: float  # per token
    per_cached: float
    draft_per_cached: float
    draft_row: float  # a row that drafts, whatever its depth
    together: bool = False  # all steps that were asked for run, also where the draft ends sooner

    @property
    def runs_model(self) -> bool:
        """Whether drafting takes passes of a model, which must have read what came before."""
        return self.steps[-1] > 0.0

    def round(self, context: int, drafted: int, asked: int | None = None, side_nodes: int = 0) -> float:
        """A round that verifies `drafted` tokens of a chain, and `side_nodes` in addition; `asked` differs where the
        draft ended sooner.
        """
        seconds = self.verify[drafted + side_nodes] + self.per_cached * context
        if drafted or asked:
            steps = asked if self.together and asked is not None else drafted
            seconds += self.steps[steps] + self.draft_row
            seconds += self.draft_per_cached * steps * (context + (steps - 1) / 2)
        return seconds

    def reading(self, context: int) -> float:
        """A round in which the draft model takes a step to read on, and drafts nothing yet."""
        return self.round(context, 1) - self.verify[1] + self.verify[0]


def alone(machine: Machine, drafter: str, deepest: int, nodes: int = 0) -> RowCosts:
    """The exact costs of a round of one row, of up to `nodes` drafted tokens (default: `deepest`)."""
    verify = [machine.overhead + machine.verify_seconds(1, 1 + n, 0.0) for n in range(max(nodes, deepest) + 1)]
    return _row_costs(machine, drafter, 1, verify, deepest)


def shares(machine: Machine, drafter: str, deepest: int, rows: int, nodes: int = 0) -> list[RowCosts]:
    """Shares of a round of `rows` rows, each of which underestimates every round; the largest bound is the best.

    For any slope b, a round that verifies n tokens takes at least a(b) + b n with a(b) = min over n of (T(n) - b n), n
    from `rows` to rows x (nodes + 1): a row with d drafts gets a(b) / rows + b (1 + d). A draft step of m <= rows
    rows takes at least m / rows of a full one if its cost does not fall with m per row more than in proportion, which
    holds for a line s0 + s1 m. Where drafts run together, the deepest row's steps are no fewer than each row's. Slopes
    tried are those of the lower convex hull of T: between hull points no other slope gives a higher a(b) + b n.
    """
    nodes = max(nodes, deepest)
    sizes = range(rows, rows * (nodes + 1) + 1)
    points = [(float(n), machine.overhead + machine.verify_seconds(rows, n, 0.0)) for n in sizes]
    priced = []
    for (x0, y0), (x1, y1) in pairwise(_lower_hull(points)):
        slope = (y1 - y0) / (x1 - x0)
        fixed = (y0 - slope * x0) / rows
        priced.append(_row_costs(machine, drafter, rows, [fixed + slope * (1 + n) for n in range(nodes + 1)], deepest))
    return priced


def _row_costs(machine: Machine, drafter: str, rows: int, verify: Sequence[float], deepest: int) -> RowCosts:
    own, step = machine.drafters[drafter], machine.step_seconds(drafter, rows, 0.0) / rows
    return RowCosts(
        verify,
        [step * n for n in range(deepest + 1)],
        own.catch_up_per_token,
        machine.per_cached_token,
        own.per_cached_token,
        own.per_row + own.start / rows,
        own.together,
    )


def _lower_hull(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    hull: list[tuple[float, float]] = []
    for x, y in points:
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2], hull[-1]
            # Points closer to the chord than rounding would only make slopes that differ by rounding.
            if (y1 - y0) * (x - x0) < (y - y0) * (x1 - x0) * (1.0 - 1e-12):
                break
            hull.pop()
        hull.append((x, y))
    return hull


def plan_seconds(tape: Tape, request: int, rows: Mapping[str, RowCosts], width: int = 1) -> float:
    """Seconds of the best plan for all tokens after the first, with these drafters at these costs; `width` as in
    `references`.

    A draft model's cache falls behind in each round that it does not draft in, which it pays for when it drafts again.
    That price is linear in the tokens missed, so three values per position carry it: `coming` is the least time if the
    model will draft again, each missed token paid at once; `never`, if it will not; `fresh`, if the round before was
    the model's and ended in a miss, when one more token may pass before any is missed. Raises ConfigError: there is
    more than one draft model.
    """
    models = [name for name, row in rows.items() if row.runs_model]
    if len(models) > 1:
        raise ConfigError(f"the clairvoyant plan knows one draft model, not {' and '.join(models)}; name one of them")
    price = rows[models[0]].catch_up if models else 0.0
    length, prompt = int(tape.lengths[request]), int(tape.prompt_tokens[request])
    plain = next(iter(rows.values()))
    coming, never, fresh = [_NEVER] * (length + 1), [0.0] * (length + 1), [0.0] * (length + 1)
    drafts = {name: list(_drafts(tape, request, name, row, width)) for name, row in rows.items()}
    for at in range(length - 1, 0, -1):
        draft, idle = _NEVER, [(plain.round(prompt + at, 0), at + 1)]
        for name, row in rows.items():
            if row.runs_model:
                for seconds, to, missed in drafts[name][at]:
                    draft = min(draft, seconds + (fresh[to] if missed else min(coming[to], never[to])))
            else:
                idle += [(seconds, to) for seconds, to, _ in drafts[name][at]]
        coming[at] = min(draft, *(seconds + price * (to - at) + coming[to] for seconds, to in idle), _NEVER)
        never[at] = min(seconds + never[to] for seconds, to in idle)
        later = (seconds + min(coming[to] + price * (to - at - 1), never[to]) for seconds, to in idle)
        fresh[at] = min(draft, *later, _NEVER)
    return 0.0 if length == 1 else min(coming[1] + price * (prompt - 1), never[1])


def _drafts(
    tape: Tape, request: int, drafter: str, row: RowCosts, width: int
) -> Iterator[list[tuple[float, int, bool]]]:
    """By position: seconds, next position, and whether the draft ended in a miss, for every depth that may be worth it.
    One token past the run may be worth it only to a model, which reads it meanwhile. A draft that goes on behind its
    chain's wrong token submits that one too.
    """
    start, length = int(tape.offsets[request]), int(tape.lengths[request])
    prompt, most = int(tape.prompt_tokens[request]), int(tape.max_tokens[request])
    view, end = tape.views[drafter], int(tape.offsets[request + 1])
    ranked = view.run[start:end] if width == 1 else run_lengths(view.rank[start:end] < width)
    for at, run in enumerate(view.run[start : start + length].tolist()):
        limit = min(len(row.steps) - 1, most - at - 1)
        chains = [
            (row.round(prompt + at, depth), min(at + min(depth, run) + 1, length), depth > run)
            for depth in range(1, min(limit, run + row.runs_model) + 1)
        ]
        yield chains + [
            (row.round(prompt + at, depth, side_nodes=1), min(at + depth + 1, length), False)
            for depth in range(run + 1, min(limit, int(ranked[at])) + 1)
        ]
