"""A pilot keeps to what requests and an engine allow, and whatever fails in it costs no request.

What its decisions earn is promised in `tests.policies`.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.composed_policy import ComposedPolicy
from adaptspec.control.controller import Controller
from adaptspec.control.policy import BatchSignals
from adaptspec.decision import Decision
from adaptspec.errors import ConfigError
from adaptspec.hosts.pilot import Pilot
from adaptspec.hosts.settings import PilotSettings
from adaptspec.journal import RequestFinished, read_entries
from adaptspec.request import SpeculationParams
from adaptspec.rounds import RoundRecord
from tests.policies.hosted import USUAL, VLLM, HostEngine, HostRequest, piloted, serve
from tests.policies.tapes import agreements
from tests.policies.world import Machine
from tests.records import read_journal

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


def test_each_kind_of_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """However often others have failed before: the first of each, few of many, and why it let go."""
    pilot = Pilot(PilotSettings(policy="static-3"), VLLM, 4)
    for failures, what in ((50, "cut"), (99, "update"), (100, "schedule")):
        for _ in range(failures):
            with pilot.fence(what):
                raise ValueError(f"no {what}")
    told = [record.exc_text or "" for record in caplog.records]
    assert [sum(f"no {what}" in one for one in told) for what in ("cut", "update", "schedule")] == [1, 1, 2]
    assert "no schedule" in told[-1]
    assert pilot.detached
    pilot.close()


def test_an_opt_out_that_is_no_request() -> None:
    """What cannot even be made a request of ours is no stranger with default wishes."""
    pilot = Pilot(PilotSettings(policy="static-3"), VLLM, 4)
    pilot.enter("b", SpeculationParams(max_depth=0), max_tokens=-1)
    assert pilot.errors == 1
    assert pilot.decide(["b"]).depths == {"b": 0}
    pilot.close()


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
            plan = pilot.decide(ids, data.draw(st.integers(0, 99)))
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


class Clock:
    """Seconds; each reading takes some."""

    def __init__(self, reading: float = 0.0) -> None:
        self.now, self.reading = 0.0, reading

    def __call__(self) -> float:
        self.now += self.reading
        return self.now


def step(pilot: Pilot, clock: Clock, ids: Sequence[str], prefill: int = 0) -> Mapping[str, int]:
    """One step without drafts, of ten milliseconds and what its prompts take; the depths that were decided for it."""
    plan, none = pilot.decide(ids, prefill), [0] * len(ids)
    clock.now += 0.01 + 5e-5 * prefill
    pilot.learn(plan, ids, none, none, [1] * len(ids))
    return plan.depths


def failing(method: str, fails: Callable[[], bool]) -> type[Controller]:
    """A controller whose `method` raises where `fails` returns True; it is asked at each call."""

    def call(self: Controller, *arguments: Any) -> Any:
        if fails():
            raise RuntimeError("injected")
        return getattr(Controller, method)(self, *arguments)

    return type("Failing", (Controller,), {method: call})


def each(number: int) -> Callable[[], bool]:
    """True at every call of that number: the third, the sixth and so on."""
    calls = count(1)
    return lambda: next(calls) % number == 0


def test_a_long_prompt_with_a_policy_of_its_own() -> None:
    """Decisions that are made while it is read are others': its first drafts are as its own policy says."""
    clock = Clock(0.005)
    pilot = Pilot(PilotSettings(policy=("static-3", "off")), VLLM, 4, clock=clock)
    pilot.enter("a")
    for _ in range(200):
        step(pilot, clock, ["a"])
    pilot.enter("b", SpeculationParams(policy="off"))
    for _ in range(3):
        step(pilot, clock, ["a"], 100)
    for _ in range(20):
        assert step(pilot, clock, ["a", "b"]) == {"a": 3, "b": 0}
    assert not pilot.errors
    pilot.close()


def test_a_request_that_missed_a_decision_keeps_its_policy() -> None:
    """Of two, one is left out of the step that is decided for, as where room is short: it has no drafts after it."""
    clock = Clock(0.005)
    pilot = Pilot(PilotSettings(policy=("static-3", "off")), VLLM, 4, clock=clock)
    pilot.enter("a")
    pilot.enter("b", SpeculationParams(policy="off"))
    for number in range(400):
        ids = ["a"] if number % 5 == 0 else ["a", "b"]
        depths = step(pilot, clock, ids)
        assert number <= 200 or depths == dict(zip(ids, [3, 0], strict=False))
    assert not pilot.errors
    pilot.close()


def test_a_request_that_comes_again_under_its_name_is_decided_anew() -> None:
    """With other limits than before, while a decision serves several steps."""
    clock = Clock(0.005)
    pilot = Pilot(PilotSettings(policy="static-3"), VLLM, 4, clock=clock)
    for _ in range(20):
        for most in (None, 1):
            pilot.enter("a", SpeculationParams(max_depth=most))
            for _ in range(11):
                depth = step(pilot, clock, ["a"])["a"]
                assert most is None or depth <= most
            pilot.leave("a")
    assert depth == 1
    assert not pilot.errors
    pilot.close()


@pytest.mark.parametrize("lag", [1, 2])
def test_a_dear_decision_serves_several_steps(lag: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where deciding takes a fifth of a step: most steps run by an earlier decision, a request without drafts has none,
    each step is learned from once, and the engine earns nearly what it would if deciding took no time.
    """
    asked, learned = [0], Counter[int]()
    choose, note = ComposedPolicy.decide, ComposedPolicy.learn

    def dearly(self: ComposedPolicy, signals: BatchSignals) -> Decision:
        asked[0] += 1
        dear.now += 1e-3
        return choose(self, signals)

    def noted(self: ComposedPolicy, record: RoundRecord, memo: object) -> None:
        learned[record.number] += 1
        note(self, record, memo)

    earned = []
    dear, free = piloted(lag=lag), piloted(lag=lag)
    for engine in (free, dear):
        engine.add(HostRequest("none", agreements(0.9, 5000), SpeculationParams(max_depth=0)))
        if engine is dear:
            monkeypatch.setattr(ComposedPolicy, "decide", dearly)
            monkeypatch.setattr(ComposedPolicy, "learn", noted)
        serve(engine, (0.75,), 8, 600)
        asked[0], begun = 0, (engine.now, engine.tokens)
        for _ in range(400):
            serve(engine, (0.75,), 8, 1)
            assert not any(one.drafted for one in engine.running if one.name == "none")
        earned.append((engine.tokens - begun[1]) / (engine.now - begun[0]))
        assert engine.pilot is not None
        assert not engine.pilot.errors
        engine.pilot.learned()
        engine.pilot.close()
    assert asked[0] < 150
    assert earned[1] >= 0.9 * earned[0]
    assert set(learned.values()) == {1}
    assert len(learned) >= 1000 - 2 * lag - 2  # the first step, and those under way, have no outcome


def test_more_requests_than_rows() -> None:
    """A request without a row runs without drafts, also where the pilot cannot decide; one that opted out has none."""
    clock, fails = Clock(), [False]
    controller = failing("decide", lambda: fails[0])
    pilot = Pilot(PilotSettings(policy="static-3"), VLLM, 2, clock=clock, controller=controller)
    for name in "abc":
        pilot.enter(name, SpeculationParams(max_depth=0 if name == "a" else None))
    for _ in range(200):
        depths = step(pilot, clock, list("abc"))
    assert depths == {"a": 0, "b": 3, "c": 0}
    assert not pilot.errors
    fails[0] = True
    plans = pilot.decide(list("abc")), pilot.stock(list("abc"))  # the second: where it cannot even be asked
    assert all(plan.depths == {"a": 0, "b": VLLM.deepest, "c": 0} for plan in plans)
    assert plans[0].number != plans[1].number
    pilot.close()


@pytest.mark.parametrize("temperature", [1e9, math.inf, math.nan, -1.0])
def test_odd_requests_do_not_make_it_let_go(temperature: float) -> None:
    """An engine may take temperatures that our own server does not: a hundred such requests are no failures."""
    pilot = Pilot(PilotSettings(policy="static-3"), VLLM, 200)
    for number in range(120):
        pilot.enter(str(number), SpeculationParams(max_depth=2), temperature=temperature, prompt_tokens=10**9)
    assert not pilot.errors
    assert max(pilot.decide([str(number) for number in range(120)]).depths.values()) == 2
    pilot.close()


def test_requests_after_it_has_let_go_draft_as_ever() -> None:
    """As the engine does by itself, but a request that wants no drafts has none; and rows are free again."""
    pilot = Pilot(PilotSettings(policy="static-3"), VLLM, 4)
    for _ in range(100):
        with pilot.fence("decide"):
            raise ValueError("injected")
    assert pilot.detached
    for _ in range(3):
        for name, depth in (("a", None), ("b", 0), ("c", 2)):
            pilot.enter(name, SpeculationParams(max_depth=depth), prompt_tokens=10**9)
        assert pilot.decide(["a", "b", "c"]).depths == {"a": VLLM.deepest, "b": 0, "c": 2}
        for name in "abc":
            pilot.leave(name)
    assert pilot.errors == 100
    pilot.close()


@pytest.mark.parametrize("reading", [0.0, 0.005])
@pytest.mark.parametrize(("prompt", "most"), [(1, 6), (94, 100)])
def test_no_more_is_drafted_than_may_be_written(prompt: int, most: int, reading: float) -> None:
    """Of the tokens asked for, and of the context, less the two that surely come before the drafts are verified.

    Also where decisions take as long as steps, so that they serve several.
    """
    clock = Clock(reading)
    pilot = Pilot(PilotSettings(policy="static-3"), VLLM, 4, model_len=100, clock=clock)
    for number in range(3):
        pilot.enter(str(number), max_tokens=90)
        for _ in range(90):
            step(pilot, clock, [str(number)])
        pilot.leave(str(number))
    pilot.enter("a", prompt_tokens=prompt, max_tokens=most)
    assert [step(pilot, clock, ["a"])["a"] for _ in range(6)] == [3, 3, 2, 1, 0, 0]
    assert not pilot.errors
    pilot.close()


def test_idle_time_is_not_counted_as_step_time(tmp_path: Path) -> None:
    """Hours between one request and the next say nothing of what reading a prompt takes, which no round is charged."""
    clock, journal = Clock(), tmp_path / "rounds.jsonl"
    pilot = Pilot(PilotSettings(policy="static-3", journal=journal), VLLM, 2, clock=clock)
    for request in range(100):
        clock.now += 3600.0
        pilot.enter(str(request))
        for prefill in (500, 0, 0):
            step(pilot, clock, [str(request)], prefill)
        pilot.leave(str(request))
        step(pilot, clock, [])  # an engine's last step, without requests
    pilot.enter("last")
    for prefill in (0, 0, *[500] * 20):
        step(pilot, clock, ["last"], prefill)
    pilot.close()
    seconds = [record.timing.total for record in read_journal(journal) if record.prefill_tokens]
    assert len(seconds) >= 20
    assert seconds == pytest.approx([0.01] * len(seconds), rel=0.3)


@pytest.mark.parametrize("every", [3, 1])
def test_a_controller_that_raises(every: int, caplog: pytest.LogCaptureFixture) -> None:
    """Every third call: a decision is lost. Every call: after a hundred it is not asked any more."""
    world = piloted(controller=failing("decide", each(every)))
    assert serve(world, (0.75,), 4, 600) > 0.0
    assert world.pilot is not None
    assert world.pilot.errors >= 100
    assert world.pilot.detached == (every == 1)
    assert world.pilot.decide([]).depth == (VLLM.deepest if every == 1 else 0)
    assert sum("injected" in (record.exc_text or "") for record in caplog.records) <= 2
    for _ in range(2):  # a host may end it once more
        world.pilot.close()


@pytest.mark.parametrize("every", [1, 3])
def test_tokens_are_counted_where_learning_fails(every: int, tmp_path: Path) -> None:
    """Whether it fails now and then or for good, after which nothing is decided any more."""
    clock, journal = Clock(), tmp_path / "rounds.jsonl"
    settings = PilotSettings(policy="static-3", journal=journal)
    pilot = Pilot(settings, VLLM, 4, clock=clock, controller=failing("learn", each(every)))
    pilot.enter("a")
    for _ in range(400):
        step(pilot, clock, ["a"])
    assert pilot.errors >= 100
    assert pilot.detached == (every == 1)
    pilot.leave("a")
    pilot.close()
    assert [entry.tokens for entry in read_entries(journal) if isinstance(entry, RequestFinished)] == [400]


def test_an_early_step_that_cannot_be_learned_from_costs_no_request_its_policy() -> None:
    """Steps that were timed first are learned from at once, before requests are started."""
    clock, calls = Clock(), count(1)
    controller = failing("learn", lambda: next(calls) == 1)
    pilot = Pilot(PilotSettings(policy=("static-3", "off")), VLLM, 4, clock=clock, controller=controller)
    pilot.enter("a")
    pilot.enter("b", SpeculationParams(policy="off"))
    for _ in range(200):
        depths = step(pilot, clock, ["a", "b"])
    assert depths == {"a": 3, "b": 0}
    assert pilot.errors == 1
    pilot.close()


def test_an_opt_out_whose_entry_fails() -> None:
    """What the request wants is unknown then, so it has no drafts."""
    clock, fails = Clock(), [False]
    controller = failing("assigned", lambda: fails[0])
    pilot = Pilot(PilotSettings(policy="static-3"), VLLM, 4, clock=clock, controller=controller)
    pilot.enter("a")
    fails[0] = True
    pilot.enter("b", SpeculationParams(max_depth=0))
    fails[0] = False
    for _ in range(200):
        depths = step(pilot, clock, ["a", "b"])
        assert not depths["b"]
    assert depths["a"]
    assert pilot.errors == 1
    pilot.leave("b")
    pilot.enter("b")
    assert pilot.decide(["b"]).depths["b"] > 0
    pilot.close()


def test_a_controller_that_asks_for_99() -> None:
    """Nothing is drafted that the engine has no room for."""

    class Deep(Controller):
        def decide(self, signals: BatchSignals) -> Decision:
            decision = super().decide(signals)
            return replace(decision, depths=np.full_like(decision.depths, 99))

    world = piloted(controller=Deep)
    serve(world, (0.5,), 4, 200)
    assert not world.overdrawn
    assert world.drafting > 0
    assert all(0 <= one.drafted <= VLLM.deepest for one in world.running)
    assert world.pilot is not None
    world.pilot.close()


@pytest.mark.parametrize("jump", [math.nan, math.inf, -1e9])
def test_a_clock_that_jumps(jump: float) -> None:
    """It teaches nothing; the others of its readings do."""
    world, readings = HostEngine(USUAL), count(1)
    pilot = world.pilot = Pilot(PilotSettings(), VLLM, 16, clock=lambda: jump if next(readings) % 5 == 0 else world.now)
    assert serve(world, (0.75,), 4, 600) > 0.0
    assert not pilot.errors
    pilot.close()
