"""Choices that stand: parts of a policy are asked less often, and told everything in the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from adaptspec.control.choosers.chooser import Choice
from adaptspec.control.composed import ComposedPolicy
from adaptspec.control.guards import GuardSettings, NeverSlower, SwitchGuard
from adaptspec.control.policy import BatchSignals, Decision
from adaptspec.control.standing_choice import StandingChoice
from adaptspec.types import FloatArray, Missed, Reason, RoundRecord
from tests.control.helpers import record, signals, table


class Patient:
    """Always three tokens, and asks not to be asked for a while; notes what it is asked and told."""

    max_depth = 3

    def __init__(self, rounds: int = 4) -> None:
        self.rounds = rounds
        self.log: list[str] = []

    def start(self, row: int, task: int) -> None:
        self.log.append("start")

    def finish(self, row: int) -> None:
        self.log.append("finish")

    def choose(self, signals: BatchSignals) -> Choice:
        self.log.append("choose")
        size = len(signals.rows)
        return Choice(np.full(size, 3), np.full(size, int(Reason.POLICY)))

    def stands(self) -> int:
        return self.rounds

    def stood(self, rounds: int) -> None:
        self.log.append(f"stood {rounds}")

    def learn(self, record: RoundRecord) -> None:
        self.log.append("learn")

    def learned(self) -> dict[str, FloatArray]:
        self.log.append("learned")
        return {}

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        pass


class Tempted(Patient):
    """Takes whatever is offered, beside a plan that stands."""

    watches_offers, looking = True, True

    @property
    def planned(self) -> Choice:
        return Choice(np.array([3]), np.array([int(Reason.POLICY)]))

    def take(self, signals: BatchSignals) -> Choice | None:
        offered = signals.offered[1]
        self.log.append("take")
        return Choice(offered, np.array([int(Reason.POLICY)]), drafter=np.array([1])) if offered.any() else None

    def scored(self, record: RoundRecord) -> None:
        self.log.append("scored")


ROUND = record([3], [2])


def played(policy: ComposedPolicy, rounds: int, told: RoundRecord = ROUND) -> list[Decision]:
    decisions = []
    for _ in range(rounds):
        decisions.append(policy.decide(signals([7])))
        policy.learn(told)
    return decisions


def test_a_choice_that_stands_is_the_same_decision_and_told_of_afterwards() -> None:
    chooser = Patient(4)
    policy = ComposedPolicy(chooser, ("draft-model",), 1)
    decisions = played(policy, 6)
    assert all(decision is decisions[0] for decision in decisions[:5])
    assert decisions[0].depths.tolist() == [3]
    assert chooser.log == ["choose", "stood 4", *["learn"] * 5, "choose"]


@pytest.mark.parametrize(
    ("happens", "first"),
    [
        (lambda policy: policy.start(1, 0), "start"),
        (lambda policy: policy.finish(0), "finish"),
        (lambda policy: policy.learned(), "learned"),
    ],
)
def test_nothing_else_happens_before_its_rounds_are_told(
    happens: Callable[[ComposedPolicy], object], first: str
) -> None:
    """What a row taught must reach the request that was in it then."""
    chooser = Patient(9)
    policy = ComposedPolicy(chooser, ("draft-model",), 2)
    played(policy, 3)
    assert chooser.log == ["choose"]
    happens(policy)
    assert chooser.log == ["choose", "stood 2", "learn", "learn", "learn", first]
    played(policy, 1)
    assert chooser.log[-1] == "choose"


def test_news_of_drafts_that_were_not_made_end_it() -> None:
    chooser = Patient(9)
    policy = ComposedPolicy(chooser, ("draft-model",), 1)
    told = replace(ROUND, missed=Missed(np.array([20]), np.array([18])))
    played(policy, 1, told)
    assert chooser.log == ["choose", "learn"]


class Forgetful(Patient):
    """Fails to learn from its second round."""

    def learn(self, record: RoundRecord) -> None:
        super().learn(record)
        if self.log.count("learn") == 2:
            raise RuntimeError("a fault of its own")


def test_a_policy_that_fails_to_learn_from_a_round_goes_on_and_costs_no_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rounds are told in other calls, too: those must not fail, and no round is told twice."""
    chooser = Forgetful(3)
    policy = ComposedPolicy(chooser, ("draft-model",), 1)
    played(policy, 9)
    policy.start(0, 0)
    assert chooser.log.count("learn") == 9
    assert "could not learn from round" in caplog.text


def test_rounds_of_others_end_it_and_are_told_at_once() -> None:
    """A policy that is an arm of another is told of rounds that it did not decide: its plan is old by then."""
    chooser = Patient(9)
    policy = ComposedPolicy(chooser, ("draft-model",), 1)
    played(policy, 2)
    for _ in range(50):
        policy.learn(record([0], [0]))
    assert chooser.log.count("learn") == 52
    played(policy, 1)
    assert chooser.log[-1] == "choose"


def test_rounds_that_failed_half_way_have_not_stood() -> None:
    """They were decided, but nobody was told how they ended."""
    chooser = Patient(9)
    policy = ComposedPolicy(chooser, ("draft-model",), 1)
    played(policy, 2)
    for _ in range(3):
        policy.decide(signals([7]))
    policy.finish(0)
    assert "stood 1" in chooser.log


def test_a_choice_that_a_limit_cut_does_not_stand() -> None:
    """The next round may have room for all of it."""
    chooser = Patient(9)
    policy = ComposedPolicy(chooser, ("draft-model",), 1)
    policy.decide(signals([1]))
    policy.learn(record([1], [1]))
    assert policy.decide(signals([7])).depths.tolist() == [3]
    assert chooser.log.count("choose") == 2


def test_a_guard_is_asked_when_its_baseline_is_due() -> None:
    """However long a choice would stand: the plain round comes after 64 rounds with drafts, as it does without."""
    guard = SwitchGuard(GuardSettings(NeverSlower()), table())
    policy = ComposedPolicy(Patient(1000), ("draft-model",), 1, guard=guard)
    depths = [int(decision.depths[0]) for decision in played(policy, 64)]
    assert depths == [3] * 64
    assert policy.decide(signals([7])).depths.tolist() == [0]


def test_hopeless_drafts_are_cut_as_soon_as_where_every_round_is_asked_for() -> None:
    """Never slower comes first: while drafts lose, or nobody knows yet, the guard is told of them soon."""
    rounds = []
    for patience in (0, 1000):
        guard = SwitchGuard(GuardSettings(NeverSlower()), table())
        policy = ComposedPolicy(Patient(patience), ("draft-model",), 1, guard=guard)
        drafting = 0
        while policy.decide(signals([7])).depths.any():
            policy.learn(record([3], [0]))
            drafting += 1
        rounds.append(drafting)
    assert rounds[1] <= rounds[0] + 2


def test_an_offer_is_taken_while_the_plan_stands() -> None:
    chooser = Tempted(4)
    policy = ComposedPolicy(chooser, ("draft-model", "ngram"), 1)
    policy.decide(signals([7]))
    policy.learn(ROUND)
    taken = policy.decide(signals([7], offered=[2]))
    policy.learn(record([2], [2], drafter=[1]))
    after = policy.decide(signals([7]))
    assert (taken.depths.tolist(), taken.drafter.tolist()) == ([2], [1])
    assert (after.depths.tolist(), after.drafter.tolist()) == ([3], [0])
    # Scores are told at once: the next offer is weighed by them.
    assert chooser.log == ["choose", "scored", "take", "scored", "take"]


def holding() -> StandingChoice:
    return StandingChoice(Choice(np.array([3]), np.array([0])), np.array([0]), 3, 2)


def test_it_holds_for_so_many_rounds() -> None:
    standing = holding()
    assert [standing.holds(signals([7])) for _ in range(3)] == [True, True, False]
    assert standing.served == 2


@pytest.mark.parametrize(
    "other",
    [
        signals([2]),
        signals([7], rows=[1]),
        signals([7, 7]),
        signals([7], beside=1),
        signals([7], prefill=64),
    ],
    ids=["a limit binds", "another row", "more rows", "rows of another policy", "a prompt is read"],
)
def test_it_holds_for_nothing_else(other: BatchSignals) -> None:
    standing = holding()
    assert not standing.holds(other)
    assert standing.served == 0
