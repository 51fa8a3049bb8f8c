"""Policies on trial: an estimate is what one earns when it serves, exact up to what was seen; they learn meanwhile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.controller import Controller
from adaptspec.control.cost import CostTable
from adaptspec.control.language.build import build_policy, parse_policy_spec
from adaptspec.control.policy import BatchSignals, Decision, Policy
from adaptspec.control.rollout import ShadowSpec
from adaptspec.control.shadow import Counterfactual, ShadowEstimate, ShadowPolicy
from adaptspec.decision_tables import StopTable, TreeTable
from adaptspec.request import Request
from adaptspec.simulation.replay import Tally, replay
from adaptspec.simulation.replay import run as run_world
from adaptspec.simulation.simulator import Simulator, SimulatorSettings
from adaptspec.types import RoundRecord
from tests.control.helpers import GOODPUT as ANY_DRAFTER
from tests.control.helpers import STATIC, record, signals
from tests.policies.tapes import Kind
from tests.policies.world import CPU, OFF, Clock, Phase, Setting, World
from tests.trees import SIBLING, branching, forests

MACHINE = CPU
GOODPUT = ANY_DRAFTER + "  drafters: [draft-model]\n"


def texts(acceptance: float, count: int, batch: int = 1) -> World:
    """Requests of which the draft model gets so many tokens right, on a quiet clock."""
    return World("texts", (Phase((Kind(acceptance),), count),), OFF, (batch,), clock=Clock(noise=0.0))


def watch(acting: str, shadow: str, work: World) -> tuple[ShadowEstimate, Controller, Tally]:
    """Serve `work` under `acting` while `shadow` watches."""
    cost = CostTable(MACHINE.costs().profile())
    here, batch = ("draft-model",), work.batch[0]
    built = {
        name: build_policy(parse_policy_spec(text, here=here), cost, batch)
        for name, text in (("a", acting), ("s", shadow))
    }
    rollouts = {"s": ShadowSpec(mode="shadow")}
    controller = Controller(built, "a", here, batch, cost=cost, rollouts=rollouts)
    settings = SimulatorSettings(("draft-model",), max_depth=7, catch_up_tokens=10**6)
    tally = run_world(Simulator(work.stream(0), MACHINE.costs(), controller, settings))
    (estimate,) = controller.estimates()
    return estimate, controller, tally


def test_the_same_policy_is_estimated_the_same() -> None:
    """Not nearly: the estimate is the measured time plus a modelled difference, and there is none."""
    estimate, _, _ = watch(STATIC % 3, STATIC % 3, texts(0.7, 4))
    assert estimate.goodput_ratio == pytest.approx(1.0, abs=1e-12)
    assert estimate.guessed == 0.0
    assert (estimate.policy, estimate.against) == ("s", "a")
    assert estimate.rounds > 100


@pytest.mark.parametrize("acceptance", [0.2, 0.6, 0.9])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_shallower_depths_are_known_exactly(acceptance: float, depth: int) -> None:
    """What a round at depth 7 tells of smaller ones needs no guess; rounds start elsewhere, which costs little."""
    work = texts(acceptance, 6)
    estimate, _, _ = watch(STATIC % 7, STATIC % depth, work)
    truth = work.fixed(Setting(depth)) / work.fixed(Setting(7))
    assert estimate.guessed == 0.0
    assert estimate.goodput_ratio == pytest.approx(truth, rel=0.08)


@pytest.mark.parametrize("acceptance", [0.3, 0.8])
def test_deeper_ones_are_estimated_and_it_is_said_how_much(acceptance: float) -> None:
    """Where all that ran was accepted, the rest is a guess from the acceptance of this traffic."""
    work = texts(acceptance, 12)
    estimate, _, _ = watch(STATIC % 3, STATIC % 6, work)
    truth = work.fixed(Setting(6)) / work.fixed(Setting(3))
    assert 0.0 < estimate.guessed < 0.3
    assert estimate.goodput_ratio == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize("acceptance", [0.2, 0.8])
def test_a_policy_that_learns_does_so_while_it_watches(acceptance: float) -> None:
    """Its estimate is what it earns when it serves, and what it learned can be carried into service."""
    work = texts(acceptance, 16)
    estimate, controller, _ = watch(STATIC % 5, GOODPUT, work)
    served, fixed = work.serve(GOODPUT).goodput, work.fixed(Setting(5))
    assert estimate.goodput_ratio == pytest.approx(served / fixed, rel=0.1)
    assert controller.everyone["s"].learned()["acceptance"].any()
    assert controller.policies.keys() == {"a"}


def test_nothing_is_seen_behind_a_policy_that_is_off_and_the_estimate_says_so() -> None:
    """Behind plain decoding all that a draft would earn is a guess."""
    estimate, _, _ = watch(STATIC % 0, STATIC % 3, texts(0.7, 3))
    assert estimate.guessed > 0.3
    assert np.isfinite(estimate.goodput_ratio)


def test_watching_changes_nothing_for_those_who_are_served() -> None:
    """Same rounds, same tokens, same seconds, shadow or no shadow."""
    _, _, watched = watch(GOODPUT, STATIC % 7, texts(0.6, 6))
    settings = SimulatorSettings(("draft-model",), max_depth=7, catch_up_tokens=10**6)
    alone = replay(parse_policy_spec(GOODPUT), texts(0.6, 6).stream(0), MACHINE.costs(), settings)
    assert (watched.rounds, watched.tokens, watched.seconds) == (alone.rounds, alone.tokens, alone.seconds)


@pytest.mark.parametrize("depth", [1, 5])
def test_several_rows_are_compared_as_whole_rounds(depth: int) -> None:
    """At batch 4 the same: what rows share is paid once."""
    work = texts(0.7, 16, 4)
    estimate, _, _ = watch(STATIC % 5, STATIC % depth, work)
    truth = work.fixed(Setting(depth)) / work.fixed(Setting(5))
    assert estimate.goodput_ratio == pytest.approx(truth, rel=0.08)


def test_a_shadow_learns_of_lookups_that_it_does_not_take() -> None:
    """They are scored for it in every round; where its own round would have been shorter, the score is, too."""
    costs = MACHINE.costs()
    cost = CostTable(costs.profile())
    lookup = ANY_DRAFTER + "  drafters: [draft-model, ngram]\n"
    built = {name: build_policy(parse_policy_spec(text), cost, 1) for name, text in (("a", STATIC % 3), ("s", lookup))}
    taught: list[RoundRecord] = []
    learn = built["s"].learn
    built["s"].learn = lambda record: (taught.append(record), learn(record))[1]  # type: ignore[method-assign]
    drafters, rollouts = ("draft-model", "ngram"), {"s": ShadowSpec(mode="shadow")}
    controller = Controller(built, "a", drafters, 1, cost=cost, rollouts=rollouts)
    served = World("three", (Phase((Kind(0.7, 0.1),), 3, 300),), OFF).stream(0)
    run_world(Simulator(served, costs, controller, SimulatorSettings(drafters, max_depth=7)))
    scored = [r for r in taught if r.shadow is not None and r.shadow[1, 0] >= 0]
    assert len(scored) > 0.2 * len(taught)
    assert all(r.shadow[1, 0] <= r.shadow_drafted[1, 0] <= r.emitted[0] for r in scored)  # type: ignore[index]
    assert not any(r.drafter[0] == 1 and r.depths[0] for r in scored)
    assert controller.everyone["s"].learned()["lookups"][0, 0].sum() > 0.5 * len(scored)


def test_a_shadow_that_tunes_its_draft_temperature_leaves_scores_to_those_who_drafted() -> None:
    """They are of the tokens, and as wide as the drafts, of the policy that serves."""
    cost = CostTable(MACHINE.costs().profile())
    tuned = STATIC % 1 + "  draft-temperature: {mode: dynamic}\n"
    built = {name: build_policy(parse_policy_spec(text), cost, 1) for name, text in (("a", STATIC % 3), ("s", tuned))}
    controller = Controller(built, "a", ("draft-model",), 1, cost=cost, rollouts={"s": ShadowSpec(mode="shadow")})
    controller.start(0, Request("r", (1,)))
    for _ in range(40):
        decision = controller.decide(signals([7]))
        scores = np.linspace(0.1, 0.9, 3 * 8).reshape(1, 3, 8)
        controller.learn(replace(record([3], [2]), decision=decision.number, temperature_scores=scores))
    assert controller.estimates()[0].rounds == 40
    assert not controller.everyone["s"].learned()["@temperature/seen"].any()


def test_a_round_that_lacks_rows_says_nothing_of_them() -> None:
    """Records may list fewer rows than were decided, in another order."""
    cost = CostTable(MACHINE.profile())
    built = {name: build_policy(parse_policy_spec(STATIC % depth), cost, 3) for name, depth in (("a", 3), ("s", 1))}
    controller = Controller(built, "a", ("draft-model",), 3, cost=cost, rollouts={"s": ShadowSpec(mode="shadow")})
    for row in range(3):
        controller.start(row, Request(f"r{row}", (1,)))
    for rows in ([2, 0], [2, 1, 0]):
        decision = controller.decide(signals([7, 7, 7]))
        controller.learn(replace(record([3] * len(rows), [2] * len(rows), rows=rows), decision=decision.number))
    assert controller.estimates()[0].rounds == 1


class Now(Policy):
    """Drafts in one round of ten; remembers what it had to catch up in each round that it learned."""

    drafters, max_depth = ("draft-model",), 3

    def __init__(self) -> None:
        self.caught_up: list[int] = []

    def decide(self, signals: BatchSignals) -> Decision:
        depths = np.full_like(signals.rows, 0 if signals.number % 10 else 3)
        return Decision(depths, np.zeros_like(depths), np.zeros_like(depths))

    def learn(self, record: RoundRecord) -> None:
        self.caught_up.append(record.caught_up)


@pytest.mark.parametrize("after", [0, 1])
def test_what_a_drafter_missed_is_counted_however_late_rounds_are_told_of(after: int) -> None:
    """Nine rounds of three tokens each; the last of them may not be known yet when it drafts."""
    cost, now = CostTable(MACHINE.profile()), Now()
    built: dict[str, Policy] = {"a": build_policy(parse_policy_spec(STATIC % 3), cost, 1), "s": now}
    controller = Controller(built, "a", ("draft-model",), 1, cost=cost, rollouts={"s": ShadowSpec(mode="shadow")})
    controller.start(0, Request("r", (1,)))
    waiting: list[RoundRecord] = []
    for _ in range(60):
        waiting.append(replace(record([3], [2]), decision=controller.decide(signals([7], cache_gap=[0])).number))
        if len(waiting) > after:
            controller.learn(waiting.pop(0))
    caught_up = [tokens for tokens in now.caught_up if tokens][1:]
    assert caught_up == [(9 - after) * 3] * len(caught_up)
    assert len(caught_up) > 3


CERTAIN = np.ones((1, 8))


def decision(depth: int, threshold: float | None = None) -> Decision:
    depths, zero = np.array([depth]), np.zeros(1, dtype=np.int64)
    stop = None if threshold is None else StopTable(confidence=np.full((len(depths), 1), threshold))
    return Decision(depths, zero, zero, stop)


def outcome(agrees: list[bool], depth: int) -> int:
    """Tokens a draft of this depth gets accepted, given which positions agree."""
    window = agrees[:depth]
    return window.index(False) if False in window else len(window)


@given(st.lists(st.booleans(), min_size=8, max_size=8), st.integers(1, 8), st.integers(0, 8))
@settings(deadline=None)
def test_the_certain_part_is_what_would_have_happened(agrees: list[bool], ran: int, asked: int) -> None:
    """Any text, any depth that ran, any that is asked about: exact, or open with the truth between the bounds."""
    acted = record([ran], [outcome(agrees, ran)])
    known = Counterfactual.of(acted, np.array([0]), 8)
    drafted = known.drafted(decision(asked))
    assert drafted.tolist() == [asked]
    surely, expected, _ = known.accepted(drafted, 0.5 * CERTAIN, 0.9 * CERTAIN)
    truth = outcome(agrees, asked)
    if asked <= ran or not known.open[0]:
        assert (surely[0], expected[0]) == (truth, 0.0)
    else:
        assert surely[0] == ran <= truth
        assert np.isclose(expected[0], sum(0.5**j for j in range(1, asked - ran + 1)))


@given(forests())
@settings(max_examples=60, deadline=None)
def test_a_tree_tells_what_its_main_chain_had(acted: RoundRecord) -> None:
    """A token beside the chain that was right says of the chain that it was wrong there."""
    owner = acted.trunk().drafter
    known = Counterfactual.of(acted, owner, 8)
    assert (known.kept <= known.seen).all()
    assert (known.seen <= acted.chain).all()
    assert not known.open[acted.trunk().accepted < acted.chain].any()
    for name, value in vars(Counterfactual.of(acted.trunk(), owner, 8)).items():
        np.testing.assert_array_equal(getattr(known, name), value)


class Wide(Policy):
    """Depth 3, as a chain or a tree; keeps what it is told."""

    drafters, max_depth = ("draft-model",), 3

    def __init__(self, width: int) -> None:
        self.width, self.told = np.array([width]), list[RoundRecord]()

    def decide(self, signals: BatchSignals) -> Decision:
        table = TreeTable(self.width, np.array([8]), np.zeros(1), np.ones((1, 2, 1)))
        return Decision(np.array([3]), np.array([0]), np.array([0]), tree=table)

    def learn(self, record: RoundRecord) -> None:
        self.told.append(record)


@pytest.mark.parametrize(("width", "tokens"), [(1, 1), (2, 3)])
def test_who_would_branch_alike_is_told_of_the_tree_that_ran(width: int, tokens: int) -> None:
    """A chain would have got nothing but the target's own token, for less time; both learn of chains alone."""
    policy = Wide(width)
    shadow = ShadowPolicy("s", policy, "a", ("draft-model",), 1, cost=CostTable(MACHINE.profile()), tasks=1)
    shadow.start(0)
    for number in range(1, 40):
        shadow.decide(replace(signals([7], cache_gap=[0]), number=number))
        shadow.learn(replace(branching(SIBLING), decision=number))
    acted = branching(SIBLING)
    chain = MACHINE.verify(1 + 5) - MACHINE.verify(1 + 3)
    seconds = acted.total_seconds - (chain if width == 1 else 0.0)
    assert shadow.estimate.goodput_ratio == pytest.approx(tokens / 3 * acted.total_seconds / seconds, rel=0.02)
    assert shadow.estimate.guessed == 0.0
    assert all(one.branches is None for one in policy.told)
    assert {(int(one.drafted[0]), int(one.accepted[0])) for one in policy.told} == {(3, 0)}
    assert {one.verify_tokens for one in policy.told} == {4}


def test_dice_draw_what_is_expected() -> None:
    """Learning from draws is learning the estimate."""
    known = Counterfactual.of(record([2], [2]), np.array([0]), 8)
    drafted, rng = np.array([6]), np.random.default_rng(0)
    draws = [known.accepted(drafted, 0.7 * CERTAIN, rng.random((1, 8)))[2][0] for _ in range(4000)]
    expected = known.accepted(drafted, 0.7 * CERTAIN, CERTAIN)[1][0]
    assert abs(np.mean(draws) - expected) < 0.06
    assert max(draws) == 4


def test_a_stop_rule_is_heeded_where_confidence_is_known() -> None:
    """Up to what ran; beyond it nothing is known and the rule goes on by itself."""
    acted = record([3], [3])
    acted.confidence[0] = [0.9, 0.6, 0.9]
    known = Counterfactual.of(acted, np.array([0]), 8)
    assert known.drafted(decision(5, 0.7)).tolist() == [2]
    assert known.drafted(decision(5, 0.5)).tolist() == [5]
    assert known.drafted(decision(0, 0.5)).tolist() == [0]


@pytest.mark.parametrize("stated", [np.nan, 0.4])
def test_a_drafter_that_found_no_more_would_have_found_no_more(stated: float) -> None:
    """Without entropies a draft that fell short of its depth had ended, however sure it was: no rule stops it."""
    unknown = np.full((1, 2), np.nan)
    silent = replace(record([2], [2], depths=[5], confidence=stated), entropy=unknown)
    known = Counterfactual.of(silent, np.array([0]), 8)
    assert known.drafted(decision(7)).tolist() == [2]
    assert known.drafted(decision(7, 0.5)).tolist() == [2]
    assert not known.open[0]


def test_another_drafter_is_known_as_far_as_it_was_scored() -> None:
    """What hindsight says of a drafter that did not run, or nothing at all."""
    acted = record([3, 3, 3], [3, 3, 3])
    other = np.array([1, 1, 1])
    nothing = Counterfactual.of(acted, other, 8)
    assert nothing.open.all()
    assert not nothing.seen.any()
    scored = replace(
        acted,
        shadow=np.array([[-1, -1, -1], [2, 4, 1]]),
        shadow_drafted=np.array([[-1, -1, -1], [4, 4, 1]]),
    )
    known = Counterfactual.of(scored, other, 8)
    assert known.open.tolist() == [False, True, False]  # rejected; all agreed so far; ended
    surely = known.accepted(np.array([7, 7, 7]), 0.5 * np.ones((3, 8)), np.zeros((3, 8)))[0]
    assert surely.tolist() == [2, 4, 1]
    wish = Decision(np.array([7, 7, 7]), other, other)
    assert known.drafted(wish).tolist() == [7, 7, 1]
    assert np.isnan(known.confidence).all()
