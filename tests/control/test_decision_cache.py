"""A controller reuses decisions where deciding takes much of a round's time, and learns from each round once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest

from adaptspec.control.controller import Controller
from adaptspec.control.decision_cache import UNDECIDED
from adaptspec.control.language.loader import build_policy, parse_policy_spec
from adaptspec.control.policy import BatchSignals, Policy
from adaptspec.decision import Decision, Reason, StopTable
from adaptspec.request import Request, SpeculationParams
from adaptspec.rounds import RoundRecord, Timing
from tests.control.helpers import GOODPUT, record, signals, table

ROUND = 0.01  # seconds
WARMED_UP = 600  # rounds after which a dear decision serves as many rounds as it may
MOST = 8


class Clock:
    """Seconds, that policies spend and the test does not."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Noted(Policy):
    """A fixed depth; decisions take `seconds` and have one `reason`."""

    drafters = ("draft-model", "ngram")
    max_depth = 5

    def __init__(self, clock: Clock, seconds: float = 0.002, reason: Reason = Reason.FIXED) -> None:
        self.clock, self.seconds, self.reason = clock, seconds, reason
        self.depth, self.once = self.max_depth, False
        self.stop: float | None = None
        self.log: list[str] = []
        self.asked: list[BatchSignals] = []
        self.learned: list[int] = []
        self.fails: Callable[[RoundRecord], bool] = lambda _: False

    def decide(self, signals: BatchSignals) -> Decision:
        self.clock.now += self.seconds
        self.asked.append(signals)
        depths = np.minimum(signals.limits, self.depth)
        stop = None if self.stop is None else StopTable(confidence=np.full((len(depths), 1), self.stop))
        zeros = np.zeros_like(depths)
        return Decision(depths, np.full_like(depths, int(self.reason)), zeros, stop, once=self.once)

    def learn(self, record: RoundRecord, memo: object = None) -> None:
        self.learned.append(record.number)
        if self.fails(record):
            raise ValueError(f"round {record.number}")

    def finish(self, row: int) -> None:
        self.log.append(f"row {row} after {len(self.learned)} rounds")


class World:
    """A controller, its policies, and the rounds that it has decided."""

    def __init__(self, *policies: Noted, clock: Clock | None = None, rows: int = 1) -> None:
        self.clock = clock or policies[0].clock
        self.policies = {f"p{number}": policy for number, policy in enumerate(policies)}
        self.controller = Controller(self.policies, "p0", ("draft-model", "ngram"), 64, timer=self.clock)
        self.rounds = 0
        for row in range(rows):
            self.start(row)

    def start(self, row: int, *, policy: str | None = None, task: str | None = None, stop: float | None = None) -> None:
        asked = SpeculationParams(policy, task, stop_threshold=stop)
        self.controller.start(row, Request(f"{row}", (1,), speculation=asked))

    def round(self, seen: BatchSignals | None = None) -> Decision:
        decision = self.controller.decide(seen or signals([64]))
        self.rounds += 1
        rows = signals([64]).rows if seen is None else seen.rows
        done = record(decision.depths.tolist(), [0] * len(rows), rows=rows.tolist())
        self.controller.learn(
            replace(
                done,
                number=self.rounds,
                decision=decision,
                tasks=decision.tasks,
                timing=Timing(np.nan, np.nan, ROUND),
            )
        )
        return decision

    def fresh(self, seen: Sequence[BatchSignals]) -> list[bool]:
        """Whether each of these rounds is decided anew."""
        asked, found = self.policies["p0"].asked, []
        for one in seen:
            before = len(asked)
            self.round(one)
            found.append(len(asked) > before)
        return found

    def warm_up(self, usual: BatchSignals) -> None:
        """Run such rounds until the next one is decided anew, and seven others may run by its decision."""
        asked = self.policies["p0"].asked
        for _ in range(WARMED_UP):
            self.round(usual)
        before = len(asked)
        while len(asked) == before:
            self.round(usual)
        for _ in range(MOST - 1):
            self.round(usual)


def dear(*, rows: int = 1) -> tuple[World, Noted]:
    """A world whose decisions take long, warmed up."""
    policy = Noted(Clock())
    world = World(policy, rows=rows)
    world.warm_up(signals([64] * rows))
    return world, policy


def test_a_dear_decision_serves_eight_rounds_and_each_round_is_learned_once() -> None:
    world, policy = dear()
    assert len(policy.learned) == world.rounds
    before = len(policy.asked)
    for _ in range(5 * MOST):
        asked = len(policy.asked)
        world.round()
        if len(policy.asked) > asked:  # it had learned from all earlier rounds
            assert policy.learned == list(range(1, world.rounds))
    assert len(policy.asked) - before == 5
    world.controller.flush()
    assert policy.learned == list(range(1, world.rounds + 1))


def test_rounds_per_decision_follow_what_deciding_takes() -> None:
    """A decision of 4 % of a round serves 4 rounds, so that it takes 1 % of them; one of 0.5 % serves its own round."""
    for seconds, rounds in ((0.0004, 4), (0.00005, 1)):
        policy = Noted(Clock(), seconds)
        world = World(policy)
        for _ in range(WARMED_UP):
            world.round()
        before = len(policy.asked)
        for _ in range(40):
            world.round()
        assert len(policy.asked) - before == 40 / rounds


def test_early_rounds_are_decided_one_by_one() -> None:
    """They are the most informative."""
    policy = Noted(Clock())
    world = World(policy)
    for _ in range(15):
        world.round()
    assert len(policy.asked) == len(policy.learned) == 15


def test_a_stall_is_no_reason_to_reuse() -> None:
    policy = Noted(Clock(), 1e-5)
    world = World(policy)
    for number in range(WARMED_UP):
        policy.seconds = 10.0 if number % 100 == 99 else 1e-5
        world.round()
    assert len(policy.asked) == WARMED_UP


def test_without_a_timer_each_round_is_decided_and_learned_at_once() -> None:
    """Simulations are deterministic."""
    policy = Noted(Clock())
    controller = Controller({"p": policy}, "p", ("draft-model", "ngram"), 1)
    controller.start(0, Request("r", (1,)))
    for number in range(1, WARMED_UP):
        decision = controller.decide(signals([64]))
        controller.learn(replace(record([5], [0]), number=number, decision=decision))
        assert (decision.number, policy.learned[-1]) == (number, number)


def seen(**changes: object) -> BatchSignals:
    sure = np.array([[[np.nan, np.nan]], [[0.55, 0.95]]])
    return replace(replace(signals([64], found=[2]), stated=sure), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "reused"),
    [
        ({"context": np.array([999])}, True),
        ({"position": np.array([999])}, True),
        ({"cache_gap": np.array([[7], [7]])}, True),
        ({"limits": np.array([5])}, True),  # no policy drafts deeper
        ({"limits": np.array([4])}, False),
        ({"found": np.array([[0], [1]])}, False),
        ({"stated": np.array([[[np.nan, np.nan]], [[0.59, 0.91]]])}, True),
        ({"stated": np.array([[[np.nan, np.nan]], [[0.61, 0.91]]])}, False),
        ({"prefill_tokens": 1}, False),
        ({"rows": np.array([1])}, False),
    ],
)
def test_rounds_share_a_decision_where_policies_read_the_same(changes: dict[str, object], reused: bool) -> None:
    world, _ = dear()
    world.start(1)
    assert world.fresh([seen(), seen(**changes)]) == [True, not reused]


def test_rounds_whose_lookups_vary_reuse_the_decisions_for_each() -> None:
    """Between two learnings there may be several decisions."""
    world, policy = dear()
    learned = len(policy.learned)
    found = [0, 3, 0, 5, 3, 0, 3]
    assert world.fresh([signals([64], found=[tokens]) for tokens in found]) == [True, True, False, True] + [False] * 3
    assert len(policy.learned) == learned


def test_another_request_in_the_row_is_decided_anew() -> None:
    world, _ = dear()
    decision = world.round()
    world.controller.finish(0)
    world.start(0)
    assert world.round().number > decision.number


@pytest.mark.parametrize("reason", [Reason.EXPLORE, Reason.PROBE, Reason.REQUEST])
def test_a_trial_is_for_one_round(reason: Reason) -> None:
    """The next decision is made anew, and by what the trial has shown; also where a limit names another reason."""
    world, policy = dear()
    policy.once, policy.reason = True, reason
    assert world.fresh([signals([64])] * 3) == [True] * 3
    assert len(policy.learned) == world.rounds


def test_a_measurement_is_for_one_round() -> None:
    world, policy = dear()
    policy.once, policy.reason = True, Reason.GUARD
    assert world.fresh([signals([64])] * 3) == [True] * 3
    policy.once = False
    assert world.fresh([signals([64])] * 3) == [True, False, False]


def test_a_baseline_is_a_single_round_where_decisions_are_reused() -> None:
    """The guard of a policy that pays asks for plain rounds one at a time."""
    cost, clock = table(), Clock()
    policy = build_policy(parse_policy_spec(GOODPUT).with_drafters(("draft-model", "ngram")), cost, 1)
    decide = policy.decide

    def slowly(seen: BatchSignals) -> Decision:
        clock.now += 0.002
        return decide(seen)

    policy.decide = slowly  # type: ignore[method-assign]
    controller = Controller({"p": policy}, "p", ("draft-model", "ngram"), 1, cost=cost, timer=clock)
    controller.start(0, Request("r", (1,)))
    reasons, numbers = [], []
    for _ in range(3000):
        decision = controller.decide(signals([64]))
        reasons.append(int(decision.reasons[0]))
        numbers.append(decision.number)
        depths = decision.depths.tolist()
        controller.learn(replace(record(depths, depths), decision=decision))
    lengths = [len(list(rounds)) for reason, rounds in groupby(reasons) if reason == int(Reason.GUARD)]
    assert lengths
    assert set(lengths) == {1}
    assert len(set(numbers)) < 1000


def test_what_is_learned_includes_the_latest_rounds() -> None:
    world, policy = dear()
    for _ in range(3):
        world.round()
    assert len(policy.learned) == world.rounds - 3
    assert world.controller.learned_policies()["p0"] is policy
    assert len(policy.learned) == world.rounds


def test_a_policy_learns_from_its_rounds_before_it_is_replaced() -> None:
    world, old = dear()
    for _ in range(3):
        world.round()
    new = Noted(old.clock)
    new.depth = 1
    world.controller.adopt("p0", new)
    assert len(old.learned) == world.rounds
    assert world.round().depths.tolist() == [1]


def test_a_policy_learns_from_a_request_before_its_row_is_free() -> None:
    """Both wait for the next decision or for what reads its state, and keep their order."""
    world, policy = dear()
    for _ in range(3):
        world.round()
    world.controller.finish(0)
    world.controller.learned_policies()
    assert policy.log == [f"row 0 after {world.rounds} rounds"]


def test_a_round_that_cannot_be_learned_from_costs_no_other() -> None:
    """Its failure is reported with the next record; requests end, and policies are replaced, all the same."""
    world, policy = dear()
    for _ in range(3):
        world.round()
    policy.fails = lambda record: record.number == world.rounds - 2
    world.controller.finish(0)
    world.controller.learned_policies()
    assert policy.learned == list(range(1, world.rounds + 1))
    assert policy.log
    world.start(0)
    failed = world.rounds - 2
    with pytest.raises(ValueError, match=f"round {failed}"):
        world.round()
    assert world.round().depths.tolist() == [5]


def batch(rows: Sequence[int], **changes: object) -> BatchSignals:
    return replace(signals([64] * len(rows), rows=rows), **changes)  # type: ignore[arg-type]


def test_a_large_batch_keeps_its_decision_while_few_of_its_rows_change() -> None:
    """One row in eight may be new, or gone. A new one takes the depth of the others; no policy learns from it."""
    world, policy = dear(rows=16)
    policy.depth = 3
    first = world.round(batch(range(16)))
    world.controller.finish(4)
    world.start(4)
    world.start(16)
    second = world.round(batch([*range(1, 17)]))
    assert second.number == first.number
    assert second.depths.tolist() == [3] * 16
    assert (second.policies == UNDECIDED).tolist() == [row in (4, 16) for row in range(1, 17)]
    assert len(set(second.requests.tolist())) == 16, "outcomes of new rows are not those of the rows they follow"
    assert (len(second.reasons), len(second.drafter), len(second.tasks), len(second.policies)) == (16,) * 4
    world.start(17)
    assert world.round(batch([*range(1, 15), 16, 17])).number > first.number


def test_a_new_row_takes_the_depth_of_its_policy() -> None:
    """A request of a policy that no other row has is decided."""
    clock = Clock()
    deep, shallow, other = (Noted(clock) for _ in range(3))
    shallow.depth = 1
    world = World(deep, shallow, other, rows=0)
    for row in range(16):
        world.start(row, policy="p1" if row % 4 == 0 else "p0")
    world.warm_up(batch(range(16)))
    first = world.round(batch(range(16)))
    world.start(16, policy="p1")
    world.start(17, policy="p0")
    second = world.round(batch([*range(2, 18)]))
    assert second.number == first.number
    assert second.depths[-2:].tolist() == [1, 5]
    world.start(18, policy="p2")
    assert world.round(batch([*range(3, 17), 17, 18])).number > first.number


def test_limits_hold_in_a_reused_decision_of_a_large_batch() -> None:
    world, _ = dear(rows=16)
    first = world.round(batch(range(16)))
    second = world.round(batch(range(16), limits=np.array([2] + [64] * 15)))
    assert second.number == first.number
    assert second.depths.tolist() == [2] + [5] * 15
    assert second.reasons.tolist() == [Reason.CEILING] + [Reason.FIXED] * 15


def test_a_new_row_with_a_stop_of_its_own_is_decided() -> None:
    """And no other row takes the stop of a request."""
    world, policy = dear(rows=16)
    policy.stop = 0.5
    first = world.round(batch(range(16)))
    world.start(16, stop=0.9)
    second = world.round(batch(range(1, 17)))
    assert second.number > first.number
    world.start(17)
    third = world.round(batch([*range(2, 18)]))
    assert third.stop is not None
    assert third.stop.confidence is not None
    assert third.stop.confidence[:, 0].tolist() == [0.5] * 14 + [0.9, 0.5]


def test_a_few_rows_are_decided_anew_when_one_changes() -> None:
    world, _ = dear(rows=4)
    first = world.round(batch(range(4)))
    world.start(4)
    assert world.round(batch([0, 1, 2, 4])).number > first.number
