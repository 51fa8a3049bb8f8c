"""The controller: rows to policies, reasons, drafters and limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptspec.control.algorithms.fixed_depths import Static
from adaptspec.control.algorithms.goodput import Goodput, GoodputSettings
from adaptspec.control.composed_policy import ComposedPolicy
from adaptspec.control.controller import Controller
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.loader import build_policy, load_policy_spec
from adaptspec.control.policy import BatchSignals
from adaptspec.control.stopping import StopRule, ThresholdStop
from adaptspec.control.tasks import TaskNames
from adaptspec.decision import Decision, Reason
from adaptspec.errors import ConfigError, UnknownModelError
from adaptspec.request import Request, SpeculationParams
from adaptspec.rounds import RoundRecord, RoundWork, Timing
from tests.control.asking import ask
from tests.control.helpers import record, signals, table


class Recorder(ComposedPolicy):
    """A fixed depth that remembers what it was asked and told."""

    def __init__(
        self, depth: int, drafters: tuple[str, ...] = ("draft-model",), stop: ThresholdStop | None = None
    ) -> None:
        super().__init__(Static(depth), drafters, stop=stop or StopRule())
        self.asked: list[BatchSignals] = []
        self.told: list[RoundRecord] = []
        self.log: list[tuple[str, int]] = []

    def decide(self, signals: BatchSignals) -> Decision:
        self.asked.append(signals)
        return super().decide(signals)

    def learn(self, record: RoundRecord, memo: object = None) -> None:
        self.told.append(record)
        self.log.append(("learn", record.number))

    def start(self, row: int) -> None:
        self.log.append(("start", row))

    def finish(self, row: int) -> None:
        self.log.append(("finish", row))


def task_names() -> TaskNames:
    return TaskNames(("code",))


def request(policy: str | None = None, max_depth: int | None = None, task: str | None = None) -> Request:
    return Request("r", (1,), speculation=SpeculationParams(policy, task, max_depth))


def two() -> tuple[Controller, Recorder, Recorder]:
    deep, shallow = Recorder(5, stop=ThresholdStop(confidence=0.5)), Recorder(1, ("ngram",))
    controller = Controller(
        {"deep": deep, "shallow": shallow},
        "deep",
        ("draft-model", "ngram"),
        8,
        cost=table(),
        task_names=task_names(),
    )
    return controller, deep, shallow


def test_two_policies_share_a_round_without_meeting() -> None:
    """Each sees its rows and how many others run in the round; drafters are the engine's; stops stay with rows."""
    controller, deep, shallow = two()
    for row, name in enumerate(("deep", "shallow", None)):
        controller.start(row, request(name))
    decision = controller.decide(signals([7, 7, 7]))
    assert decision.depths.tolist() == [5, 1, 5]
    assert decision.drafter.tolist() == [0, 1, 0]
    assert (deep.asked[0].rows.tolist(), deep.asked[0].other_rows) == ([0, 2], 1)
    assert ask(decision.stop, [0.9, 0.1, 0.1]) == [True, True, False]
    controller.learn(record([5, 1, 5], [5, 0, 2], drafter=[0, 1, 0]))
    assert deep.told[0].accepted.tolist() == [5, 2]
    assert shallow.told[0].rows.tolist() == [1]
    assert shallow.told[0].confidence.shape[0] == 1


def test_a_late_outcome_is_its_own_requests() -> None:
    """Whoever has the row by then, its policy and its task are those of the decision."""
    controller, deep, shallow = two()
    controller.start(0, request("shallow", task="code"))
    decision = controller.decide(signals([7]))
    controller.start(0, request("deep"))
    told = replace(record([1], [1]), tasks=decision.tasks, decision=decision)
    controller.learn(told)
    assert not deep.told
    assert shallow.told[0].tasks.tolist() == [1]
    assert shallow.told[0].current_rows.tolist() == [-1]


def test_a_late_outcome_is_not_told_to_a_policy_that_came_in_place() -> None:
    """It would learn from depths that it may never choose."""
    controller, deep, _ = two()
    controller.start(0, request("deep"))
    decision = controller.decide(signals([7]))
    new = Recorder(2)
    controller.adopt("deep", new)
    told = replace(record([5], [5]), tasks=decision.tasks, decision=decision)
    controller.learn(told)
    assert not deep.told
    assert not new.told
    controller.learn(replace(told, decision=controller.decide(signals([7]))))
    assert len(new.told) == 1


def test_requests_that_end_without_a_decoding_round_are_passed_on_at_once() -> None:
    """Else the engine would hold their starts and ends for as long as no other request decodes."""
    controller, deep, shallow = two()
    for number in range(5):
        controller.start(number, request("shallow"))
        controller.finish(number)
        assert shallow.log[-2:] == [("start", number), ("finish", number)]
    controller.start(0, request())
    decision = controller.decide(signals([7]))
    controller.learn(replace(record([5], [5]), number=1, decision=decision, tasks=decision.tasks))
    controller.finish(0)
    assert deep.log == [("start", 0), ("learn", 1), ("finish", 0)]


def test_a_replaced_policy_is_passed_what_came_before_in_order() -> None:
    """A start, a round and an end wait; the new policy gets the rows that still run, the old one loses them."""
    clock = iter(range(10**6))
    old, other, new = Recorder(5), Recorder(1), Recorder(2)
    controller = Controller(
        {"a": old, "b": other}, "a", ("draft-model",), 8, timer=lambda: float(next(clock)), task_names=task_names()
    )
    for row in range(2):
        controller.start(row, request())
    number = 0
    while True:  # until a decision is reused, so that a round waits
        number += 1
        decision = controller.decide(signals([7, 7]))
        controller.learn(replace(record([5, 5], [5, 5]), number=number, decision=decision, tasks=decision.tasks))
        if ("learn", number) not in old.log:
            break
        assert number < 100
    known = len(old.log)
    controller.start(2, request())
    controller.finish(0)
    controller.start(3, request("b"))
    assert (len(old.log), other.log) == (known, [])
    controller.adopt("a", new)
    assert old.log[known:] == [("learn", number), ("start", 2), ("finish", 0), ("finish", 1), ("finish", 2)]
    assert new.log == [("start", 1), ("start", 2)]
    assert other.log == [("start", 3)]


def test_limits_have_reasons() -> None:
    """The request's own ceiling and the lack of room read differently in a trace."""
    controller, _, _ = two()
    controller.start(0, request(max_depth=2))
    controller.start(1, request())
    controller.start(2, request(max_depth=0))
    decision = controller.decide(signals([2, 3, 0]))
    assert decision.depths.tolist() == [2, 3, 0]
    assert decision.reasons.tolist() == [Reason.REQUEST, Reason.CEILING, Reason.REQUEST]


def test_wrong_names_are_refused() -> None:
    controller, _, _ = two()
    with pytest.raises(UnknownModelError, match="served are: deep, shallow"):
        controller.start(0, request("fast"))
    with pytest.raises(ConfigError, match="wants the drafter 'ngram'"):
        Controller({"n": Recorder(1, ("ngram",))}, "n", ("draft-model",), 1)
    with pytest.raises(ConfigError, match="there is no policy 'x'"):
        Controller({}, "x", (), 1)


def test_a_policy_that_never_drafts_needs_no_drafter() -> None:
    controller = Controller({"off": Recorder(0)}, "off", (), 1)
    controller.start(0, request())
    assert controller.decide(signals([7])).depths.tolist() == [0]


def test_a_request_brings_its_own_stop_threshold() -> None:
    """It replaces the policy's stop for that request alone, and goes with it."""
    controller, _, _ = two()
    own = Request("r", (1,), speculation=SpeculationParams(stop_threshold=0.9))
    controller.start(0, own)
    controller.start(1, request())
    assert ask(controller.decide(signals([7, 7])).stop, [0.8, 0.8]) == [False, True]
    controller.start(0, request())
    assert ask(controller.decide(signals([7, 7])).stop, [0.8, 0.8]) == [True, True]


def test_expectations_of_policies_are_kept_apart() -> None:
    """In a shared round each row has what its own policy expects; no policy expects the goodput of the whole."""
    cost = table()
    policies = {
        name: build_policy(load_policy_spec(find_policy(name)), cost, 8) for name in ("off", "goodput", "thompson")
    }
    controller = Controller(policies, "off", ("draft-model", "ngram"), 8, cost=cost)
    for row, name in enumerate(policies):
        controller.start(row, request(name))
    decision = controller.decide(signals([7, 7, 7]))
    expected = decision.expected
    assert expected is not None
    assert np.isnan(expected.goodput)
    assert np.isnan(expected.accepted).tolist() == [True, False, True]
    assert expected.accepted[1] <= decision.depths[1]


def searching(depth: int) -> ComposedPolicy:
    """A policy that takes up to so many tokens of what n-grams offer."""
    cost = table()
    tiers = tuple(range(1, depth + 1))
    return ComposedPolicy(Goodput(cost, 8, 2, GoodputSettings(tiers, ("ngram",))), ("ngram",))


def test_lookups_are_watched_where_they_do_not_draft() -> None:
    """They are scored for next to nothing, in every round."""
    controller = Controller({"p": searching(4)}, "p", ("draft-model", "ngram"), 8, cost=table())
    controller.start(0, request())
    watched = []
    for _ in range(80):
        decision = controller.decide(signals([7], rows=[0]))
        watched.append(decision.watched == (1,))
        assert (decision.depths.tolist(), decision.drafter.tolist()) == ([0], [1])
        controller.learn(record([0], [0], rows=[0], drafter=[1]))
    assert all(watched)
    assert True in watched[-8:]


def test_rounds_that_only_read_prompts_price_their_tokens() -> None:
    """Before a round with decoding rows had read a prompt, rounds read for ten times as long as they should."""
    costs = table()
    controller = Controller({"a": Recorder(1)}, "a", ("draft-model",), 4, cost=costs)
    guess = costs.prefill_tokens_within(1.0)
    work, seconds = RoundWork(0, 0, prefill_tokens=guess), 10.0
    for _ in range(3):
        controller.learn(replace(record([0], [0]).take(np.arange(0)), work=work, timing=Timing(0.0, seconds, seconds)))
    assert costs.prefill_tokens_within(10.0) == pytest.approx(guess, rel=0.1)
