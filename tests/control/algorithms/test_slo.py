"""A promised time per token: late rows catch up at the expense of others; without late rows it is plain goodput."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from adaptspec.control.algorithms.slo import Slo, SloSpec
from adaptspec.simulation.simulator import ReplayStats, replay
from tests.control.algorithms.makers import parts
from tests.control.helpers import record, signals
from tests.policies.tapes import Kind
from tests.policies.world import CPU, HEADER, OFF, Phase, World, spec_of

ALONE = "  drafters: [draft-model]\n"
SLO = HEADER + "  choose: {algorithm: slo, time-per-output-token-ms: %s}\n" + ALONE
GOODPUT = HEADER + "  choose: {algorithm: goodput}\n  guard: {never-slower: off}\n" + ALONE
PLAIN = HEADER + "  choose: {algorithm: static, depth: 0}\n"
LENGTH = 300
# Half of the rows accept most tokens, half few: goodput lets the first draft deep, at the expense of the others.
UNEQUAL = World("unequal", (Phase((Kind(0.35), Kind(0.85)), 24, LENGTH),), OFF, (8,))


def serve(policy: str, world: World = UNEQUAL) -> ReplayStats:
    """Have a policy serve a world on a quiet clock, with its records kept."""
    return replay(spec_of(policy), world.stream(0), CPU.costs(), keep=True)


def promised(seconds: float, rows: int = 1) -> Slo:
    spec = SloSpec.model_validate({"algorithm": "slo", "time-per-output-token-ms": 1e3 * seconds})
    return Slo(spec, replace(parts(rows, 1, stops=True), tiers=tuple(range(1, 8))))


def paces(served: ReplayStats) -> list[float]:
    """Milliseconds per token of each request that was served to its end."""
    seconds: dict[str, float] = defaultdict(float)
    tokens: dict[str, int] = defaultdict(int)
    for r in served.records:
        for name, emitted in zip(r.request_ids, r.emitted.tolist(), strict=True):
            seconds[name] += r.timing.total
            tokens[name] += emitted
    return [1e3 * seconds[name] / tokens[name] for name in seconds if tokens[name] >= LENGTH - 1]


@pytest.mark.parametrize("target", [2.7, 2.6, 2.5])
def test_every_row_keeps_its_pace(target: float) -> None:
    """Where goodput alone would let the slow rows fall behind, and at no cost compared with no drafting at all."""
    free, off = serve(GOODPUT), serve(PLAIN)
    kept = serve(SLO % target)
    assert max(paces(free)) > target
    assert max(paces(kept)) <= 1.01 * target
    assert kept.goodput >= 0.98 * off.goodput


def test_a_target_without_risk_costs_nothing() -> None:
    assert serve(SLO % 60.0).goodput == pytest.approx(serve(GOODPUT).goodput, rel=1e-9)


def test_a_promise_that_cannot_be_kept_leaves_no_row_far_behind() -> None:
    """Plain decoding is as fast as the slow rows can go; goodput makes them two fifths slower."""
    worst, plain = max(paces(serve(SLO % 1.0))), max(paces(serve(PLAIN)))
    assert worst <= 1.15 * plain
    assert max(paces(serve(GOODPUT))) > 1.35 * plain


def test_the_row_that_is_behind_is_preferred() -> None:
    """Measured pace decides: two rows alike, one of which has lost time."""
    made = promised(1.2e-3, rows=2)
    for row in (0, 1):
        made.start(row)
    for _ in range(60):
        made.learn(record([3, 3], [2, 2]))
    for _ in range(20):
        made.learn(record([0], [0], rows=[1], slower=6.0))
    value = made.choose(signals([7, 7])).value
    assert value is not None
    assert value.weight is not None
    assert value.weight.tolist() == [1.0, 8.0]


def test_a_request_that_begins_owes_nothing_of_the_last() -> None:
    made = promised(1e-4)
    made.start(0)
    for _ in range(20):
        made.learn(record([0], [0]))
    made.start(0)
    value = made.choose(signals([7])).value
    assert value is not None
    assert value.weight is not None
    assert value.weight.tolist() == [1.0]
