"""What fixed depths would have taken: equal to what they do take, where a tape lets both be seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.controller import Controller
from adaptspec.control.cost import CostTable
from adaptspec.control.spec import PolicySpec, build_policy, parse_policy_spec
from adaptspec.replay.simulator import Tally, run, static_spec
from adaptspec.replay.world import World, WorldSettings
from adaptspec.telemetry.lots import Lot, RequestRows
from adaptspec.telemetry.static_tiers import TIERS, StaticTiers
from adaptspec.types import RoundRecord
from tests.control.helpers import record, table
from tests.control.simulator import GOODPUT, Machine, Text, stream_of, texts

MACHINE = Machine(noise=0.0)


def played(spec: PolicySpec, work: Sequence[Text], batch: int = 1) -> tuple[Tally, CostTable]:
    """A policy's rounds on a machine whose costs it knows."""
    stream, cost = stream_of(work, batch), CostTable(MACHINE.profile())
    policy = build_policy(spec, cost, stream.most_rows)
    controller = Controller({spec.name: policy}, spec.name, ("draft-model",), stream.most_rows, cost=cost)
    world = World(stream, MACHINE.costs(), controller, WorldSettings(("draft-model",), max_depth=7, noise=0.0))
    return run(world, keep=True), cost


def estimated(records: Sequence[RoundRecord], cost: CostTable, lot: int = 64) -> StaticTiers:
    names = sorted({name for one in records for name in one.request_ids})
    rows = RequestRows(len(names))
    tiers = StaticTiers(cost, ("draft-model",), rows.size, 1)
    for name in names:
        tiers.start(rows.enter(name), 0, 0)
    for start in range(0, len(records), lot):
        part = Lot()
        for one in records[start : start + lot]:
            part.add(one, rows)
        tiers.add(part.decoding, part.rows)
    return tiers


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("acceptance", [0.5, 0.9])
def test_shallower_tiers_are_what_they_would_have_been(acceptance: float, batch: int) -> None:
    """From rounds at depth 7 every other depth is known: replaying it takes as long as was estimated."""
    work = texts(acceptance, 40, 64)
    ran, cost = played(static_spec(7), work, batch)
    tiers = estimated(ran.records, cost)
    assert tiers.measured == pytest.approx(ran.seconds)
    for tier, seconds in zip(tiers.tiers, tiers.seconds.tolist(), strict=True):
        true, _ = played(static_spec(tier.depth), work, batch)
        # Requests of a batch end at other times; catching up with the prompt is in the first rounds.
        assert seconds / tiers.tokens == pytest.approx(true.seconds / true.tokens, rel=0.06 if batch == 1 else 0.12)


def test_deeper_tiers_are_guessed_from_what_was_seen() -> None:
    """A policy that varies its depth is judged against depths that it seldom runs."""
    work = texts(0.85, 40, 64)
    ran, cost = played(parse_policy_spec(GOODPUT), work)
    tiers = estimated(ran.records, cost)
    for tier, seconds in zip(tiers.tiers, tiers.seconds.tolist(), strict=True):
        true, _ = played(static_spec(tier.depth), work)
        assert seconds / tiers.tokens == pytest.approx(true.seconds / true.tokens, rel=0.12)
    assert tiers.guessed[0] == 0
    assert (np.diff(tiers.guessed[1:]) >= 0).all()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 7), st.integers(0, 7), st.sampled_from(TIERS))
def test_a_round_tells_how_many_rounds_a_shallower_depth_takes(drafted: int, kept: int, depth: int) -> None:
    """Counted by stepping through the same agreements."""
    kept = min(kept, drafted)
    agreements = [True] * kept + [False]
    position = rounds = 0
    while position < len(agreements):
        ahead = agreements[position:].index(False)
        position += min(ahead, depth) + 1
        rounds += 1
    if not 0 < depth <= drafted or kept == drafted:
        return
    tiers = StaticTiers(table(), ("draft-model",), 1, 1)
    took = tiers._rounds(0, record([drafted], [kept]))
    assert took.rounds[0, TIERS.index(depth)] == rounds


def test_plain_rounds_are_their_own_measure() -> None:
    """Whoever never drafts is exactly as fast as plain decoding, however slow the machine is today."""
    records = [record([0, 0], [0, 0], slower=1.7, depths=[0, 0]) for _ in range(40)]
    tiers = estimated(records, table())
    assert tiers.seconds[0] == pytest.approx(tiers.measured)
    assert tiers.observed == [0]


def test_what_the_table_gets_wrong_is_corrected_at_each_batch_size_by_itself() -> None:
    """A machine that is slow with few rows only would otherwise make plain decoding seem slow with many as well."""
    alone = [record([0], [0], slower=1.7, depths=[0]) for _ in range(200)]
    together = [record([0] * 4, [0] * 4, depths=[0] * 4) for _ in range(40)]
    tiers = estimated([*alone, *together], table())
    assert tiers.seconds[0] == pytest.approx(tiers.measured)


def test_rounds_that_read_prompts_are_not_compared() -> None:
    """Their time is the prompt's as well."""
    tiers = estimated([record([2], [1], prefill=100), record([2], [1])], table())
    assert tiers.tokens == 2
    assert tiers.observed == [2]
