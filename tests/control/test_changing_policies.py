"""Policies come, go and move from canary to live while requests run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptspec.control.algorithms.fixed_depths import Static
from adaptspec.control.composed_policy import ComposedPolicy
from adaptspec.control.controller import Controller
from adaptspec.control.rollout import LIVE, CanarySpec, Rollout
from adaptspec.control.tasks import TaskNames
from adaptspec.errors import ConfigError
from adaptspec.request import Request, SpeculationParams
from adaptspec.rounds import RoundRecord
from tests.control.helpers import record, signals, table


class Watcher(ComposedPolicy):
    """A fixed depth that remembers its rows."""

    def __init__(self, depth: int = 2, drafters: tuple[str, ...] = ("draft-model",)) -> None:
        super().__init__(Static(depth), drafters)
        self.live: set[int] = set()
        self.told: list[RoundRecord] = []

    def start(self, row: int) -> None:
        self.live.add(row)

    def finish(self, row: int) -> None:
        self.live.remove(row)

    def learn(self, record: RoundRecord, memo: object = None) -> None:
        self.told.append(record)


def request(policy: str | None = None, name: str = "r") -> Request:
    return Request(name, (1,), speculation=SpeculationParams(policy))


def controller(policies: dict[str, Watcher], rollouts: dict[str, Rollout]) -> Controller:
    names = TaskNames(("code",))
    return Controller(policies, "a", ("draft-model", "ngram"), 8, cost=table(), task_names=names, rollouts=rollouts)


def test_a_canary_takes_its_share_of_those_who_name_nobody() -> None:
    """Named requests go where they ask to; the same id always meets the same policy."""
    one = controller({"a": Watcher(), "c": Watcher(1)}, {"c": CanarySpec(mode="canary", percent=30.0)})
    taken = [one.assigned(request(name=f"r{i}")) for i in range(400)]
    assert 80 < taken.count("c") < 160
    assert taken == [one.assigned(request(name=f"r{i}")) for i in range(400)]
    assert {one.assigned(request("a", f"r{i}")) for i in range(50)} == {"a"}
    at = taken.index("c")
    one.start(0, request(name=f"r{at}"))
    assert one.decide(signals([7])).depths.tolist() == [1]


def test_running_requests_move_to_the_new_policy() -> None:
    """Hot reload: rows are started there, the old one lets go, rows of others do not notice."""
    old, other, new = Watcher(2), Watcher(1), Watcher(5)
    one = controller({"a": old, "b": other}, {})
    one.start(0, request())
    one.start(1, request("b"))
    one.start(2, Request("t", (1,), speculation=SpeculationParams(task="code", max_depth=4)))
    one.adopt("a", new)
    assert (old.live, other.live, new.live) == (set(), {1}, {0, 2})
    decision = one.decide(signals([7, 7, 4]))
    assert decision.depths.tolist() == [5, 1, 4]
    one.learn(replace(record([5, 1, 4], [5, 1, 4]), decision=decision))
    one.finish(0)
    assert (len(old.told), len(new.told), new.live) == (0, 1, {2})


def test_a_policy_goes_from_canary_to_live() -> None:
    one = controller({"a": Watcher()}, {})
    one.adopt("new", Watcher(4), CanarySpec(mode="canary", percent=100.0))
    assert one.assigned(request(name="x")) == "new"
    one.adopt("new", Watcher(4), LIVE)
    assert one.assigned(request(name="x")) == "a"
    assert one.assigned(request("new")) == "new"


def test_what_cannot_be_adopted_changes_nothing() -> None:
    """The last good state is kept, whole."""
    a = Watcher()
    one = controller({"a": a, "b": Watcher()}, {})
    one.start(0, request())
    half = CanarySpec(mode="canary", percent=60.0)
    one.adopt("c", Watcher(), half)
    refused: list[tuple[str, Watcher, Rollout, str]] = [
        ("a", Watcher(drafters=("medusa",)), LIVE, "medusa"),
        ("a", Watcher(), CanarySpec(mode="canary", percent=30.0), "default policy"),
        ("d", Watcher(), half, "120 percent"),
    ]
    for name, policy, rollout, problem in refused:
        with pytest.raises(ConfigError, match=problem):
            one.adopt(name, policy, rollout)
        assert (set(one.policies), a.live, policy.live) == ({"a", "b", "c"}, {0}, set())
    assert one.decide(signals([7])).depths.tolist() == [2]
