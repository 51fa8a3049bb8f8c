"""Policies on trial: an estimate is what one earns when it serves, exact up to what was seen; they learn meanwhile."""

from __future__ import annotations

import pytest

from adaptspec.control.controller import Controller
from adaptspec.control.cost import CostTable
from adaptspec.control.language.build import build_policy, parse_policy_spec
from adaptspec.control.rollout import ShadowSpec
from adaptspec.control.shadow import ShadowEstimate
from adaptspec.simulation.replay import Tally, replay
from adaptspec.simulation.replay import run as run_world
from adaptspec.simulation.simulator import Simulator, SimulatorSettings
from tests.control.helpers import GOODPUT as ANY_DRAFTER
from tests.control.helpers import STATIC
from tests.policies.tapes import Kind
from tests.policies.world import CPU, OFF, Clock, Phase, Setting, World

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


@pytest.mark.parametrize("acceptance", [0.2, 0.9])
@pytest.mark.parametrize("depth", [0, 3])
def test_shallower_depths_are_known_exactly(acceptance: float, depth: int) -> None:
    """What a round at depth 7 tells of smaller ones needs no guess; rounds start elsewhere, which costs little."""
    work = texts(acceptance, 6)
    estimate, _, _ = watch(STATIC % 7, STATIC % depth, work)
    truth = work.fixed(Setting(depth)) / work.fixed(Setting(7))
    assert estimate.guessed == 0.0
    assert estimate.goodput_ratio == pytest.approx(truth, rel=0.08)


def test_watching_changes_nothing_for_those_who_are_served() -> None:
    """Same rounds, same tokens, same seconds, shadow or no shadow."""
    _, _, watched = watch(GOODPUT, STATIC % 7, texts(0.6, 6))
    settings = SimulatorSettings(("draft-model",), max_depth=7, catch_up_tokens=10**6)
    alone = replay(parse_policy_spec(GOODPUT), texts(0.6, 6).stream(0), MACHINE.costs(), settings)
    assert (watched.rounds, watched.tokens, watched.seconds) == (alone.rounds, alone.tokens, alone.seconds)
