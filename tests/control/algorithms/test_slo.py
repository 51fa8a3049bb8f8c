"""A promised time per token: kept for rows that drafting slows down, at little cost in goodput; else plain goodput."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.algorithms.round_terms import ModelTerms, RoundTerms
from adaptspec.control.algorithms.slo import Slo, SloSpec, keep_pace, seconds_of, worst_pace
from adaptspec.simulation.simulator import ReplayStats, replay
from tests.control.algorithms.makers import parts
from tests.control.helpers import record, signals
from tests.policies.tapes import Kind
from tests.policies.world import CPU, HEADER, OFF, Phase, World, spec_of

ALONE = "  drafters: [draft-model]\n"
SLO = HEADER + "  choose: {algorithm: slo, time-per-output-token-ms: %s}\n" + ALONE
GOODPUT = HEADER + "  choose: {algorithm: goodput}\n" + ALONE
PLAIN = HEADER + "  choose: {algorithm: static, depth: 0}\n"
# Half of the rows accept most tokens, half few: goodput lets the first draft deep, at the expense of the others.
UNEQUAL = World("unequal", (Phase((Kind(0.35), Kind(0.85)), 24, 300),), OFF, (8,))


def serve(policy: str, world: World = UNEQUAL) -> ReplayStats:
    """Have a policy serve a world on a quiet clock, with its records kept."""
    return replay(spec_of(policy), world.stream(0), CPU.costs(), keep=True)


def promised(seconds: float, rows: int = 1, drafter: str = "draft-model") -> Slo:
    said = {"algorithm": "slo", "time-per-output-token-ms": 1e3 * seconds}
    return Slo(SloSpec.model_validate(said), replace(parts(rows, 1, (drafter,), stops=True), tiers=tuple(range(1, 8))))


def terms(
    acceptance: list[float], limits: list[int], verify: float = 0.1, tiers: tuple[int, ...] = (1, 2, 3)
) -> RoundTerms:
    """Rows that accept every token with their own chance; times in units of a plain round's fixed part."""
    rows, deepest = len(acceptance), max(tiers)
    chances = np.repeat(np.array(acceptance)[:, None], deepest, axis=1)
    depths = np.arange(deepest + 1)
    model = ModelTerms(
        which=0,
        acceptance=chances,
        gains=np.concatenate((np.zeros((rows, 1)), np.cumsum(np.cumprod(chances, axis=1), axis=1)), axis=1),
        sizes=depths.astype(np.float64),
        nodes=depths.astype(np.float64),
        chances=np.ones(1),
        drafted=np.ones(deepest),
        per_step=0.1,
        per_row=0.02,
        start=0.05,
        entry=np.zeros(rows),
        calibration=np.zeros((rows, 1)),
    )
    return RoundTerms(
        size=rows,
        plain=1.2,
        beside=0.05,
        verify=verify * np.arange(rows * deepest + 1, dtype=np.float64),
        fits=np.isin(depths, (0, *tiers)) & (depths <= np.array(limits)[:, None]),
        models=(model,),
    )


def paces(served: ReplayStats) -> list[float]:
    """Milliseconds per token of each request."""
    seconds: dict[str, float] = defaultdict(float)
    tokens: dict[str, int] = defaultdict(int)
    for r in served.records:
        for name, emitted in zip(r.request_ids, r.emitted.tolist(), strict=True):
            seconds[name] += r.total_seconds
            tokens[name] += emitted
    return [1e3 * seconds[name] / tokens[name] for name in seconds]


@pytest.mark.parametrize("target", [2.7, 2.6, 2.5])
def test_every_row_keeps_its_pace(target: float) -> None:
    """Where goodput alone would let the slow rows fall behind, and at no cost compared with no drafting at all.

    Without a stop rule: marginal-goodput ends drafts by the goodput of the batch, not by a row's pace.
    """
    free, off = serve(GOODPUT), serve(PLAIN)
    kept = serve(SLO % target + "  stop: none\n")
    assert max(paces(free)) > target
    assert max(paces(kept)) <= target
    assert kept.goodput >= 0.98 * off.goodput


def test_a_promise_that_cannot_be_kept_leaves_the_least_violation() -> None:
    """Plain decoding is as fast as the slow rows can go."""
    worst = max(paces(serve(SLO % 1.0)))
    assert worst <= 1.1 * max(paces(serve(PLAIN)))


def test_the_row_that_is_behind_is_preferred() -> None:
    """Measured pace decides who hurries: two rows alike, one of which has lost time."""
    made = promised(2.5e-3 / 0.95, rows=2)  # 5 percent are kept in reserve
    for row in (0, 1):
        made.start(row)
    for _ in range(60):
        made.learn(record([3, 3], [2, 2]))
    for _ in range(20):
        made.learn(record([0], [0], rows=[1], slower=6.0))
    depths = made.choose(signals([7, 7])).depths
    assert depths[1] > 0
    assert depths[1] >= depths[0]


ROWS = st.lists(st.tuples(st.floats(0.0, 0.99), st.integers(0, 3), st.floats(0.2, 3.0)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, verify=st.floats(0.0, 0.4))
def test_nothing_keeps_the_worst_row_faster(rows: list[tuple[float, int, float]], verify: float) -> None:
    """Kept where any depths keep it, and with the least time; where none do, the least violation of all."""
    acceptance, limits, allowed = ([row[k] for row in rows] for k in range(3))
    made = terms(acceptance, limits, verify)  # type: ignore[arg-type]
    every = np.array(list(product(*(range(limit + 1) for limit in limits))))  # type: ignore[arg-type]
    paces, seconds = worst_pace(made, every, np.array(allowed)), seconds_of(made, every)
    depths, worst = keep_pace(made, np.array(allowed))
    assert (depths <= np.array(limits)).all()
    assert worst == worst_pace(made, depths[None], np.array(allowed))[0]
    if (paces >= 1.0 + 1e-9).any():
        assert worst >= 1.0 - 1e-9
        assert seconds_of(made, depths[None])[0] <= seconds[paces >= 1.0 + 1e-9].min() + 1e-9
    else:
        assert worst >= paces.max() - 1e-9
