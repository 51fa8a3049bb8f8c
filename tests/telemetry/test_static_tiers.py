"""What fixed depths would have taken: equal to what they do take, where a tape lets both be seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.controller import Controller
from adaptspec.control.cost import CostTable
from adaptspec.control.language.build import build_policy, parse_policy_spec
from adaptspec.control.language.spec import PolicySpec
from adaptspec.simulation.replay import Tally, run, static_spec
from adaptspec.simulation.simulator import Simulator, SimulatorSettings
from adaptspec.telemetry.static_tiers import TIERS, StaticTiers, together
from adaptspec.types import RoundRecord
from tests.control.helpers import GOODPUT, record
from tests.policies.tapes import Kind
from tests.policies.world import CPU, OFF, Phase, World
from tests.trees import CHAIN, SIBLING, STRAIGHT, Grown, branching

MACHINE = CPU


def texts(acceptance: float, batch: int = 1) -> World:
    """Forty requests of which the draft model gets so many tokens right."""
    return World("texts", (Phase((Kind(acceptance),), 40, 64),), OFF, (batch,))


def played(spec: PolicySpec, work: World) -> tuple[Tally, CostTable]:
    """A policy's rounds on a machine whose costs it knows."""
    stream, cost = work.stream(0), CostTable(MACHINE.profile())
    policy = build_policy(spec.with_drafters(("draft-model",)), cost, stream.most_rows)
    controller = Controller({spec.name: policy}, spec.name, ("draft-model",), stream.most_rows, cost=cost)
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


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("acceptance", [0.5, 0.9])
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


def test_deeper_tiers_are_guessed_from_what_was_seen() -> None:
    """A policy that varies its depth is judged against depths that it seldom runs, within the error that it states."""
    work = texts(0.85)
    ran, _ = played(parse_policy_spec(GOODPUT), work)
    told = estimated(ran.records).earnings
    for tier in told:
        true, _ = played(static_spec(tier.tier.depth), work)
        assert tier.seconds / tier.tokens == pytest.approx(true.seconds / true.tokens, rel=0.12)
    assert told[0].guessed == 0
    assert (np.diff([tier.guessed for tier in told]) >= 0).all()
    assert told[-1].error / told[-1].seconds > told[0].error / told[0].seconds


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
    tiers = StaticTiers(("draft-model",), 1, 1)
    took = tiers._rounds(0, record([drafted], [kept]))
    assert took.rounds[0, TIERS.index(depth)] == rounds


def test_plain_rounds_are_their_own_measure() -> None:
    """Whoever never drafts is exactly as fast as plain decoding, however slow the machine is today."""
    tiers = estimated([record([0, 0], [0, 0], slower=1.7, depths=[0, 0]) for _ in range(40)])
    off, *others = tiers.earnings
    assert off.seconds == pytest.approx(off.against, rel=1e-4)
    assert tiers.observed == [0]
    assert not any(tier.known for tier in others)


def test_each_batch_size_is_measured_by_itself() -> None:
    """A machine that is slow with few rows only would otherwise make plain decoding seem slow with many as well."""
    alone = [record([0], [0], slower=1.7, depths=[0]) for _ in range(200)]
    together = [record([0] * 4, [0] * 4, depths=[0] * 4) for _ in range(40)]
    off = estimated([*alone, *together]).earnings[0]
    assert off.seconds == pytest.approx(off.against, rel=1e-4)


def test_without_plain_rounds_nothing_is_said_of_plain_decoding() -> None:
    """It could only be made up; what waits is compared as soon as some have run."""
    drafting = [record([3], [2])] * 100
    assert not estimated(drafting).earnings[0].known
    off = estimated([*drafting, *[record([0], [0])] * 4]).earnings[0]
    assert off.known
    assert off.tokens == 304
    assert off.seconds / off.tokens == pytest.approx(record([0], [0]).total_seconds, rel=0.01)


def test_rounds_that_read_prompts_are_not_compared() -> None:
    """Their time is the prompt's as well."""
    tiers = estimated([record([2], [1], prefill=100), record([2], [1]), *[record([0], [0])] * 10])
    assert tiers.earnings[0].tokens == 12
    assert tiers.observed == [2]


def test_rounds_together_are_their_rows_one_after_the_other() -> None:
    """Also where only some were scored, or drafted."""
    rounds = [record([2, 0], [1, 0]), record([0], [0]), record([3, 1, 0], [3, 0, 0])]
    whole = together(rounds, np.array([0, 1, 0, 0, 1, 2]))
    assert whole.drafted.tolist() == [2, 0, 0, 3, 1, 0]
    assert whole.rows.tolist() == [0, 1, 0, 0, 1, 2]
    scored = replace(rounds[0], stated=np.ones((1, 2, 4)), temperature_scores=np.ones((2, 2, 8)))
    part = together([scored, *rounds[1:]], np.array([0, 1, 0, 0, 1, 2])).take(np.array([5]))
    assert (part.drafted.tolist(), part.stated, part.temperature_scores) == ([0], None, None)
    assert np.isnan(whole.confidence[:, 0]).tolist() == [False, True, True, False, False, True]
    assert whole.shadow is None


def test_of_trees_the_main_chains_are_told() -> None:
    """What a sibling earned, no fixed depth would have: a chain's first token was wrong there."""
    whole = together([branching(SIBLING, STRAIGHT), record([2], [1]), branching(CHAIN)], np.arange(4))
    assert whole.drafted.tolist() == [3, 3, 2, 2]
    assert whole.accepted.tolist() == [0, 2, 1, 1]
    assert whole.emitted.tolist() == [3, 3, 2, 2]


@pytest.mark.parametrize("siblings", [0.0, 0.6])
def test_fixed_depths_are_known_from_trees_too(siblings: float) -> None:
    """Siblings catch some of what the chain misses: rounds then tell of texts that chains would reach later.

    Tokens that the chain guesses come by chance, so that what it would take is counted by stepping through them.
    """
    dice = np.random.default_rng(3)
    right, caught = dice.random(20_000) < 0.75, dice.random(20_000) < siblings
    rounds, at = [], 0
    while at < 19_900:
        run = int(np.argmin([*right[at : at + 3], False]))
        parents, path = [-1, 0, 1, -1, 0, 1], list(range(run))
        if run < 3 and caught[at + run]:
            path.append(3 + run)
        rounds.append(branching(Grown(parents, 3, path)))
        at += len(path) + 1
    tiers = StaticTiers(("draft-model",), 1, 1)
    whole = together(rounds, np.zeros(len(rounds), dtype=np.int64))
    tiers._learn(whole)
    took = tiers._rounds(0, whole).rounds.sum(axis=0)
    for tier, estimate in list(zip(TIERS, took.tolist(), strict=True))[: TIERS.index(3) + 1]:
        position = true = 0
        while position < at:
            position += int(np.argmin([*right[position : position + tier], False])) + 1
            true += 1
        assert estimate == pytest.approx(true, rel=0.04)
