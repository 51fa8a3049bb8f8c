"""What fixed depths would have taken: equal to what they do take, where a tape lets both be seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from adaptspec.control.controller import Controller
from adaptspec.control.cost_model import CostModel
from adaptspec.control.language.loader import build_policy
from adaptspec.control.language.spec import PolicySpec
from adaptspec.rounds import RoundRecord
from adaptspec.simulation.simulator import ReplayStats, Simulator, SimulatorSettings, run, static_spec
from adaptspec.telemetry.static_tiers import StaticTiers
from tests.control.helpers import record
from tests.policies.tapes import Kind
from tests.policies.world import CPU, OFF, Phase, World

MACHINE = CPU


def texts(acceptance: float, batch: int = 1) -> World:
    """Forty requests of which the draft model gets so many tokens right."""
    return World("texts", (Phase((Kind(acceptance),), 40, 64),), OFF, (batch,))


def played(spec: PolicySpec, work: World) -> tuple[ReplayStats, CostModel]:
    """A policy's rounds on a machine whose costs it knows."""
    stream, cost = work.stream(0), CostModel(MACHINE.profile())
    policy = build_policy(spec.with_drafters(("draft-model",)), cost, stream.max_rows)
    controller = Controller({spec.name: policy}, spec.name, ("draft-model",), stream.max_rows, cost=cost)
    simulator = Simulator(stream, MACHINE.costs(), controller, SimulatorSettings(("draft-model",), max_depth=7))
    return run(simulator, keep=True), cost


def estimated(records: Sequence[RoundRecord], lot: int = 64) -> StaticTiers:
    names = sorted({name for one in records for name in one.request_ids})
    row = {name: i for i, name in enumerate(names)}
    tiers = StaticTiers(("draft-model",), len(names), 1, reading=("draft-model",))
    for i in row.values():
        tiers.start(i, 0)
    decoding = [one for one in records if one.request_ids]
    for start in range(0, len(decoding), lot):
        part = decoding[start : start + lot]
        tiers.add(part, np.array([row[name] for one in part for name in one.request_ids]))
    return tiers


def alternating(work: World, *others: int) -> list[RoundRecord]:
    """Rounds at depth 7 among which rounds of other fixed depths were run, as exploration does."""
    parts = [played(static_spec(depth), work)[0].records for depth in (7, *others)]
    cut = [[part[i * len(part) // 20 : (i + 1) * len(part) // 20] for i in range(20)] for part in parts]
    return [one for lots in zip(*cut, strict=True) for lot in lots for one in lot]


@pytest.mark.parametrize(("acceptance", "batch"), [(0.5, 4), (0.9, 1)])
def test_shallower_tiers_are_what_they_would_have_been(acceptance: float, batch: int) -> None:
    """From rounds at depth 7 every other depth is known: replaying it takes as long as was estimated."""
    work = texts(acceptance, batch)
    told = estimated(alternating(work, 0, 1, 3)).earnings
    for tier in told:
        true = played(static_spec(tier.tier.depth), work)[0]
        assert tier.known
        # Requests of a batch end at other times; catching up with the prompt is in the first rounds.
        ratio = tier.seconds / tier.tokens / (true.seconds / true.tokens)
        assert ratio == pytest.approx(1.0, abs=0.08 if batch == 1 else 0.12)


def test_plain_rounds_are_their_own_measure() -> None:
    """Whoever never drafts is exactly as fast as plain decoding, however slow the machine is today."""
    tiers = estimated([record([0, 0], [0, 0], slower=1.7, depths=[0, 0]) for _ in range(40)])
    off, *others = tiers.earnings
    assert off.seconds == pytest.approx(off.against, rel=1e-4)
    assert tiers.observed == [0]
    assert not any(tier.known for tier in others)


def test_rounds_that_read_prompts_are_not_compared() -> None:
    """Their time is the prompt's as well."""
    tiers = estimated([record([2], [1], prefill=100), record([2], [1]), *[record([0], [0])] * 10])
    assert tiers.earnings[0].tokens == 12
    assert tiers.observed == [2]
