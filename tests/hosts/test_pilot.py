"""A pilot keeps to what requests and an engine allow, and whatever fails in it costs no request.

What its decisions earn is promised in `tests.policies`.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.controller import Controller
from adaptspec.control.cost import CostTable
from adaptspec.errors import ConfigError
from adaptspec.hosts.pilot import Pilot
from adaptspec.hosts.settings import PilotSettings
from adaptspec.request import SpeculationParams
from tests.policies.hosted import SLOW_DRAFT, USUAL, VLLM, HostRequest, piloted, serve
from tests.policies.tapes import agreements
from tests.policies.world import Machine

STATIC = (
    "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: mine}\n"
    "spec: {choose: {algorithm: static, depth: %d}}\n"
)
RAGGED = replace(USUAL, ragged=1.2)  # where unlike rows take a fifth longer


@pytest.mark.parametrize(("machine", "pays"), [(RAGGED, False), (replace(USUAL, verify_ms=(5.0, 105.0)), True)])
def test_few_rows_are_cut_only_where_that_pays(machine: Machine, pays: bool) -> None:
    """In many steps some are about to end: where unlike rows take a fifth longer, all verify alike even so."""
    world, unlike = piloted(machine, policy="static-3"), 0
    serve(world, (0.75,), 16, 450)
    for _ in range(200):
        serve(world, (0.75,), 16, 1)
        unlike += len({one.drafted for one in world.running}) > 1
    assert unlike > 20 if pays else unlike < 5
    assert world.pilot is not None
    assert not world.pilot.errors
    world.pilot.close()


def test_who_has_another_policy_is_cut_even_so() -> None:
    """Where unlike rows are dear others verify alike, but a policy that is off drafts for nobody."""
    world = piloted(RAGGED, policy=("static-3", "off"))
    serve(world, (0.75,), 15, 300)
    world.add(HostRequest("off", agreements(0.75, 5000), SpeculationParams(policy="off")))
    for _ in range(200):
        serve(world, (0.75,), 16, 1)
        assert not any(one.drafted for one in world.running if one.name == "off")
    assert world.pilot is not None
    assert not world.pilot.errors
    world.pilot.close()


def test_a_long_prompt_with_a_policy_of_its_own() -> None:
    """Decisions that are made while it is read are others': its first drafts are as its own policy says."""
    pilot, now = Pilot(PilotSettings(policy=("static-3", "off")), VLLM, 4, clock=lambda: now[0]), [0.0]

    def step(ids: list[str], prefill: int = 0) -> dict[str, int]:
        plan = pilot.decide(ids, prefill)
        now[0] += 0.01
        pilot.learn(plan, ids, [0] * len(ids), [0] * len(ids), [1] * len(ids))
        return plan.depths

    pilot.enter("a")
    for _ in range(200):
        step(["a"])
    for dear in range(100):
        pilot._own.note("decide", 1.0 + dear)
    pilot.enter("b", SpeculationParams(policy="off"))
    for _ in range(3):
        step(["a"], 100)
    for _ in range(20):
        assert step(["a", "b"]) == {"a": 3, "b": 0}
    assert not pilot.errors
    pilot.close()


def test_who_missed_a_decision_keeps_its_policy() -> None:
    """Of two, one is left out of the step that is decided for, as where room is short: it has no drafts after it."""
    pilot, now = Pilot(PilotSettings(policy=("static-3", "off")), VLLM, 4, clock=lambda: now[0]), [0.0]
    pilot.enter("a")
    pilot.enter("b", SpeculationParams(policy="off"))
    for step in range(400):
        ids = ["a"] if step % 5 == 0 else ["a", "b"]
        plan = pilot.decide(ids)
        if step > 200:
            assert plan.depths == dict(zip(ids, [3, 0], strict=False))
        now[0] += 0.01
        pilot.learn(plan, ids, [0] * len(ids), [0] * len(ids), [1] * len(ids))
        pilot._own.note("decide", 1.0)
    pilot.leave("b")
    assert not pilot._unusual
    assert not pilot.errors
    pilot.close()


def test_rows_with_a_hole_stay_off() -> None:
    """What was skipped once is never drafted for again; newcomers are tried, ever fewer of them."""
    world = piloted(SLOW_DRAFT, skip_draft=True)
    held: set[str] = set()
    count = 0
    for _ in range(1200):
        while len(world.running) < 4:
            count += 1
            world.add(HostRequest(f"r{count}", agreements(0.02, 64, count)))
        before = {one.name for one in world.running if not one.cached}
        world.step()
        held |= before
        assert all(one.drafted == 0 for one in world.running if one.name in before)
    assert held


def test_a_dear_decision_serves_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where deciding takes a fifth of a step: most steps go on with the last one, still who wants no drafts has none,
    and the engine earns nearly what it would if deciding took no time.
    """
    world, asked, real = piloted(), [0], Controller.decide

    def decide(self: Controller, *arguments: Any) -> Any:
        asked[0] += 1
        world.now += 1e-3
        return real(self, *arguments)

    monkeypatch.setattr(Controller, "decide", decide)
    world.add(HostRequest("none", agreements(0.9, 5000), SpeculationParams(max_depth=0)))
    serve(world, (0.75,), 8, 600)
    begun, asked[0] = (world.now, world.tokens), 0
    for _ in range(400):
        serve(world, (0.75,), 8, 1)
        assert not any(one.drafted for one in world.running if one.name == "none")
    goodput = (world.tokens - begun[1]) / (world.now - begun[0])
    monkeypatch.undo()
    assert asked[0] < 150
    free = piloted()
    free.add(HostRequest("none", agreements(0.9, 5000), SpeculationParams(max_depth=0)))
    serve(free, (0.75,), 8, 600)
    assert goodput >= 0.93 * serve(free, (0.75,), 8, 400)
    for one in (world, free):
        assert one.pilot is not None
        assert not one.pilot.errors
        one.pilot.close()


def test_a_request_may_opt_out_and_end() -> None:
    """Of a batch, one has none of its tokens drafted, one at most two; others what they like."""
    world = piloted(policy="static-3")
    wishes = (SpeculationParams(max_depth=0), SpeculationParams(max_depth=2), SpeculationParams())
    for number, wish in enumerate(wishes):
        world.add(HostRequest(str(number), agreements(0.9, 200), wish))
    seen: list[list[int]] = []
    while world.running:
        world.step()
        by_name = {one.name: one.drafted for one in world.running}
        seen.append([by_name.get(str(number), 0) for number in range(3)])
    assert np.array(seen[30:40]).max(axis=0).tolist() == [0, 2, 3]
    assert np.array(seen).max(axis=0)[0] == 0


def test_policies_that_are_not_served_are_ignored_and_named(caplog: pytest.LogCaptureFixture) -> None:
    """The default decides, and the log says so."""
    pilot = Pilot(PilotSettings(policy=("static-3", "off")), VLLM, 4)
    for name in ("off", "nowhere", None):
        pilot.enter(str(name), SpeculationParams(policy=name))
    assert "'nowhere' is not served" in caplog.text
    assert pilot.ignored["not_served"] == 1
    assert not pilot.errors
    pilot.close()


def test_more_requests_than_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those set aside keep theirs: who finds none runs without drafts, and nobody who wants none gets any."""
    pilot = Pilot(PilotSettings(policy="static-3"), VLLM, 2)
    for name in "abc":
        pilot.enter(name, SpeculationParams(max_depth=0 if name == "a" else None))
    for _ in range(200):
        plan = pilot.decide(list("abc"))
        pilot.learn(plan, list("abc"), [0] * 3, [0] * 3, [1] * 3)
    assert not pilot.errors
    assert plan.depths == {"a": 0, "b": 3, "c": 0}
    monkeypatch.setattr(Controller, "decide", raising(1))
    plan = pilot.decide(list("abc"))
    stock = VLLM.deepest, {"a": 0, "b": VLLM.deepest, "c": 0}
    assert (plan.depth, plan.depths) == stock
    other = pilot.stock(list("abc"))  # where it cannot even be asked
    assert (other.depth, other.depths) == stock
    assert other.number != plan.number
    pilot.close()


def test_who_found_no_row_is_not_taken_for_another() -> None:
    """A row that is free later is not for those who had none: what they wanted is forgotten by then."""
    pilot = Pilot(PilotSettings(policy="static-3"), VLLM, 1)
    pilot.enter("a")
    pilot.enter("b", SpeculationParams(max_depth=0))
    pilot.leave("a")
    for _ in range(200):
        plan = pilot.decide(["b"])
        assert plan.depths == {"b": 0}
        pilot.learn(plan, ["b"], [0], [0], [1])
    pilot.leave("b")
    pilot.enter("b")
    assert pilot.decide(["b"]).depths["b"] > 0
    assert not pilot.errors
    pilot.close()


@pytest.mark.parametrize("temperature", [1e9, math.inf, math.nan, -1.0])
def test_odd_requests_do_not_make_it_let_go(temperature: float) -> None:
    """An engine may take temperatures that our own server does not: a hundred such requests are no failures."""
    pilot = Pilot(PilotSettings(policy="static-3"), VLLM, 200)
    for number in range(120):
        pilot.enter(str(number), SpeculationParams(max_depth=0), temperature=temperature, prompt_tokens=10**9)
    assert len(pilot._guests.rows) == 120
    assert not pilot.errors
    pilot.close()


def test_who_comes_after_it_has_let_go_drafts_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the engine does by itself, but whoever wants no drafts has none; and they leave."""
    pilot = Pilot(PilotSettings(policy="static-3"), VLLM, 4)
    monkeypatch.setattr(pilot, "_decided", None)
    for _ in range(100):
        pilot.decide([])
    assert pilot.detached
    for name, depth in (("a", None), ("b", 0), ("c", 2)):
        pilot.enter(name, SpeculationParams(max_depth=depth), prompt_tokens=10**9)
    assert pilot.decide(["a", "b", "c"]).depths == {"a": VLLM.deepest, "b": 0, "c": 2}
    for name in "abc":
        pilot.leave(name)
    assert not pilot._guests.rows
    assert pilot.errors == 100
    pilot.close()


def test_nobodys_time_is_no_steps_time() -> None:
    """Hours between one request and the next say nothing of what reading a prompt takes."""
    now = 0.0
    pilot = Pilot(PilotSettings(policy="static-3"), VLLM, 2, clock=lambda: now)
    for request in range(300):
        name = str(request)
        now += 3600.0
        pilot.enter(name)
        for prefill in (500, 0, 0):
            plan = pilot.decide([name], prefill)
            now += 0.01 + 5e-5 * prefill
            pilot.learn(plan, [name], [0], [0], [1])
        pilot.leave(name)
        pilot.learn(pilot.decide([]), [], [], [], [])  # a host's last step, without anybody
    assert pilot._times.prefill_seconds(1000) < 0.2
    pilot.close()


def raising(every: int) -> Callable[..., Any]:
    """What raises each time in so many, and else does what it did."""
    calls = [0]
    real = Controller.decide

    def decide(self: Controller, *arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] % every == 0:
            raise RuntimeError("injected")
        return real(self, *arguments)

    return decide


@pytest.mark.parametrize("every", [3, 1])
def test_a_controller_that_raises(
    every: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every third call: a decision is lost. Every call: after a hundred it is not asked any more."""
    world = piloted()
    monkeypatch.setattr(Controller, "decide", raising(every))
    assert serve(world, (0.75,), 4, 600) > 0.0
    assert world.pilot is not None
    assert world.pilot.errors >= 100
    assert world.pilot.detached == (every == 1)
    assert world.pilot.decide([]).depth == (VLLM.deepest if every == 1 else 0)
    assert sum("injected" in (record.exc_text or "") for record in caplog.records) <= 2
    for _ in range(2):  # a host may end it once more
        world.pilot.close()


def test_each_kind_of_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """However often others have failed before: the first of each, few of many, and why it let go."""
    pilot = Pilot(PilotSettings(policy="static-3"), VLLM, 4)
    for count, what in ((50, "cut"), (99, "update"), (100, "schedule")):
        for _ in range(count):
            with pilot.fence(what):
                raise ValueError(f"no {what}")
    told = [record.exc_text or "" for record in caplog.records]
    assert [sum(f"no {what}" in one for one in told) for what in ("cut", "update", "schedule")] == [1, 1, 2]
    assert "no schedule" in told[-1]
    assert pilot.detached
    pilot.close()


def test_a_learner_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deciding goes well meanwhile: it lets go all the same."""
    world = piloted()

    def learn(*_: Any) -> None:
        raise ValueError("injected")

    monkeypatch.setattr(Controller, "learn", learn)
    assert serve(world, (0.75,), 4, 400) > 0.0
    assert world.pilot is not None
    assert world.pilot.detached
    world.pilot.close()


def test_an_opt_out_whose_entry_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows any more what it wants, so that it has no drafts."""

    def assigned(*_: Any) -> str:
        raise RuntimeError("injected")

    pilot = Pilot(PilotSettings(policy="static-3"), VLLM, 4)
    pilot.enter("a")
    with monkeypatch.context() as patched:
        patched.setattr(Controller, "assigned", assigned)
        pilot.enter("b", SpeculationParams(max_depth=0))
    for _ in range(200):
        plan = pilot.decide(["a", "b"])
        assert not plan.depths["b"]
        pilot.learn(plan, ["a", "b"], [0, 0], [0, 0], [1, 1])
    assert plan.depths["a"]
    assert pilot.errors == 1
    pilot.leave("b")
    assert not pilot._rowless
    pilot.close()


def test_an_opt_out_that_is_no_request() -> None:
    """What cannot even be made a request of ours is no stranger with default wishes."""
    pilot = Pilot(PilotSettings(policy="static-3"), VLLM, 4)
    pilot.enter("b", SpeculationParams(max_depth=0), max_tokens=-1)
    assert pilot.errors == 1
    assert pilot.decide(["b"]).depths == {"b": 0}
    pilot.close()


@pytest.mark.parametrize("every", [1, 3])
def test_tokens_are_counted_whoever_fails(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether learning fails now and then or for good, after which nothing is decided any more."""
    calls = [0]

    def learn(*_: Any) -> None:
        calls[0] += 1
        if calls[0] % every == 0:
            raise ValueError("injected")

    monkeypatch.setattr(Controller, "learn", learn)
    pilot, now = Pilot(PilotSettings(policy="static-3"), VLLM, 4, clock=lambda: now[0]), [0.0]
    pilot.enter("a")
    for _ in range(400):
        plan = pilot.decide(["a"])
        now[0] += 0.01
        pilot.learn(plan, ["a"], [0], [0], [1])
    row = pilot._guests.rows["a"]
    assert pilot.errors >= 100
    assert pilot.detached == (every == 1)
    pilot.leave("a")
    assert pilot._guests.written[row] == 400
    pilot.close()


def test_a_controller_that_asks_for_99(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is drafted that the engine has no room for."""
    world, real = piloted(), Controller.decide

    def decide(self: Controller, *arguments: Any) -> Any:
        decision = real(self, *arguments)
        decision.depths = np.full_like(decision.depths, 99)
        return decision

    monkeypatch.setattr(Controller, "decide", decide)
    for number in range(4):
        world.add(HostRequest(str(number), agreements(0.5, 300, number)))
    for _ in range(60):
        world.step()
        assert all(0 <= one.drafted <= VLLM.deepest for one in world.running)
    assert world.pilot is not None
    world.pilot.close()


def test_costs_that_are_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the planner makes of them, all requests end, and no depth is out of bounds."""
    for name in ("verify_seconds", "plain_seconds", "start_seconds", "overhead_seconds"):
        monkeypatch.setattr(CostTable, name, lambda *_, **__: math.nan)
    world = piloted()
    assert serve(world, (0.75,), 4, 400) > 0.0
    assert not world.overdrawn
    assert world.pilot is not None
    world.pilot.close()


@pytest.mark.parametrize("jump", [math.nan, math.inf, -1e9])
def test_a_clock_that_jumps(jump: float) -> None:
    """It teaches nothing; the others of its readings do."""
    world = piloted()
    readings = [0]

    def clock() -> float:
        readings[0] += 1
        return jump if readings[0] % 5 == 0 else world.now

    assert world.pilot is not None
    world.pilot._clock = clock
    assert serve(world, (0.75,), 4, 600) > 0.0
    assert not world.pilot.errors
    world.pilot.close()


def test_what_cannot_be_used_is_refused_at_start(tmp_path: Path) -> None:
    """A policy that a host cannot follow, one that is none, and a name that is not there."""
    lossy = tmp_path / "lossy.yaml"
    lossy.write_text(STATIC.replace("depth: %d}", "depth: 3}, verification: {method: typical, lossy: true}"))
    for policy, said in ((str(lossy), "lossy"), ("goodput-ngram", "ngram"), ("nothing", "there is no policy")):
        with pytest.raises(ConfigError, match=said):
            Pilot(PilotSettings(policy=policy), VLLM, 4)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_whatever_an_engine_says(data: st.DataObject) -> None:
    """Requests come, go and come again, steps are never told of or twice, counts are nonsense: nothing is raised, and
    no plan is deeper than the host or deeper for a row than for the batch.
    """
    pilot = Pilot(PilotSettings(policy="goodput"), VLLM, 4, clock=lambda: data.draw(st.floats(0.0, 100.0)))
    names, plans = st.sampled_from("abcdef"), []
    for _ in range(data.draw(st.integers(0, 60))):
        what = data.draw(st.sampled_from(["enter", "leave", "decide", "decide", "learn", "learn"]))
        if what == "enter":
            depth = data.draw(st.none() | st.integers(0, 99))
            pilot.enter(data.draw(names), SpeculationParams(max_depth=depth), max_tokens=data.draw(st.integers(0, 50)))
        elif what == "leave":
            pilot.leave(data.draw(names), data.draw(st.sampled_from(["stop", "nonsense"])))
        elif what == "decide":
            ids = data.draw(st.lists(names, unique=True))
            plan = pilot.decide(ids, data.draw(st.integers(0, 99)), data.draw(st.floats(0.0, 1.0)))
            assert 0 <= plan.depth <= VLLM.deepest
            assert all(0 <= depth <= plan.depth for depth in plan.depths.values())
            plans.append(plan)
        elif plans:
            ids = data.draw(st.lists(names, unique=True))
            counts = [data.draw(st.lists(st.integers(0, 9), min_size=len(ids), max_size=len(ids))) for _ in range(3)]
            pilot.learn(data.draw(st.sampled_from(plans)), ids, *counts)
    pilot.close()


def test_it_brings_no_torch_into_the_process() -> None:
    """vLLM's has one of its own; SGLang's scheduler is not to wait for ours."""
    code = "import sys, adaptspec.hosts.pilot; print([n for n in ('torch', 'transformers') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
