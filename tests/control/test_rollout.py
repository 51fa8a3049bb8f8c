"""Which policy meets which traffic: shares of canaries; `when:`, by prompt length, batch size and API key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.controller import Controller
from adaptspec.control.language.build import build_policy, found_among, parse_policy_spec
from adaptspec.control.rollout import CanarySpec, Shares
from adaptspec.control.state import signature
from adaptspec.control.tasks import Labels
from adaptspec.errors import ConfigError, PolicyError
from adaptspec.request import Request
from tests.control.helpers import record, signals, table

IDS = [f"chatcmpl-{i}" for i in range(4000)]


def canary(percent: float) -> CanarySpec:
    return CanarySpec(mode="canary", percent=percent)


def taken(percents: dict[str, float]) -> dict[str, set[str]]:
    shares = Shares({name: canary(percent) for name, percent in percents.items()})
    return {name: {i for i in IDS if shares.taker(i) == name} for name in percents}


def test_a_canary_gets_about_its_share_and_always_the_same_requests() -> None:
    """The hash is fixed for ever: replicas and restarts agree on it."""
    mine = taken({"a": 10.0, "b": 25.0})
    assert 0.08 < len(mine["a"]) / len(IDS) < 0.12
    assert 0.22 < len(mine["b"]) / len(IDS) < 0.28
    assert not mine["a"] & mine["b"]
    assert mine == taken({"a": 10.0, "b": 25.0})
    shares = Shares({"a": canary(50.0)})
    assert [shares.taker(f"r{i}") for i in range(8)] == ["a", None, None, None, "a", "a", None, None]


@given(st.floats(0.1, 100.0), st.floats(0.1, 100.0))
def test_a_canary_that_grows_keeps_what_it_had(one: float, other: float) -> None:
    """A conversation does not jump between policies because somebody raised a percentage."""
    small, large = sorted((one, other))
    before, after = Shares({"a": canary(small)}), Shares({"a": canary(large)})
    assert all(after.taker(i) == "a" for i in IDS[:50] if before.taker(i) == "a")


def test_more_than_everything_cannot_be_shared() -> None:
    """The error names who takes too much."""
    with pytest.raises(ConfigError, match="a, b take 110 percent"):
        Shares({"a": canary(60.0), "b": canary(50.0)})


HEAD = "apiVersion: adaptspec.dev/v1\nkind: SpeculationPolicy\nmetadata: {name: mine}\nspec:\n"
STATIC = "  choose: {algorithm: static, depth: 5}\n"
DRAFTERS = ("draft-model", "ngram")


def controller(when: str, rows: int = 3, choose: str = STATIC) -> Controller:
    labels = Labels()
    spec = parse_policy_spec(f"{HEAD}{choose}  when: {when}\n", "p", labels, DRAFTERS)
    policy = build_policy(spec, table(), rows, labels)
    return Controller({"mine": policy}, "mine", DRAFTERS, rows, cost=table(), labels=labels)


def test_prompt_length_is_that_of_each_request() -> None:
    """What was written since does not count: context 100, of which 0, 60 and 99 tokens were."""
    one = controller("[{prompt-tokens: {at-least: 100}, use: static-3}, {prompt-tokens: {at-most: 1}, use: off}]")
    for row in range(3):
        one.start(row, Request(str(row), (1,)))
    seen = signals([7, 7, 7])
    seen.position[:] = [0, 60, 99]
    assert one.decide(seen).depths.tolist() == [3, 5, 0]


def test_batch_size_is_looked_at_in_every_round() -> None:
    """Rows under other policies count, and a request may go from one policy to another and back."""
    one = controller("[{batch-size: {at-least: 2, at-most: 3}, use: static-3}]")
    for row in range(3):
        one.start(row, Request(str(row), (1,)))
    sizes = [([7], 0), ([7, 7], 0), ([7], 1), ([7], 5), ([7], 0)]
    assert [one.decide(signals(limits, beside=beside)).depths.tolist() for limits, beside in sizes] == [
        [5],
        [3, 3],
        [3],
        [5],
        [5],
    ]


def test_api_keys_go_by_their_names() -> None:
    """A key that no policy names, and a request without one, are nobody in particular."""
    one = controller("[{api-key: [batch, night], use: off}, {api-key: gold, use: static-3}]", rows=4)
    for row, key in enumerate(("night", "gold", "other", None)):
        one.start(row, Request(str(row), (1,), key=key))
    assert one.decide(signals([7] * 4)).depths.tolist() == [0, 3, 5, 5]


def test_policies_bring_drafters_of_their_own() -> None:
    """They need not be among those of the policy, and are told in the engine's numbers."""
    one = controller("[{api-key: gold, use: goodput-ngram}]")
    one.start(0, Request("0", (1,), key="gold"))
    one.start(1, Request("1", (1,)))
    for _ in range(8):
        decision = one.decide(signals([7, 7], found=[4, 4]))
        one.learn(record(decision.depths.tolist(), decision.depths.tolist(), drafter=decision.drafter.tolist()))
    assert decision.drafter.tolist() == [1, 0]
    assert decision.depths.tolist() == [4, 5]


def test_each_learns_from_the_rounds_that_it_decided() -> None:
    """A round of four right drafts by one says nothing to the other."""
    choose = "  choose: {algorithm: goodput}\n"
    one = controller("[{batch-size: {at-least: 2}, use: ucb}]", choose=choose)
    for row in range(3):
        one.start(row, Request(str(row), (1,)))
    policy = one.policies["mine"]
    decision = one.decide(signals([7]))
    one.learn(replace(record(decision.depths.tolist(), decision.depths.tolist()), decision=decision.number))
    for _ in range(30):
        decision = one.decide(signals([7, 7, 7]))
        one.learn(replace(record(decision.depths.tolist(), [0, 0, 0]), decision=decision.number))
    known = policy.learned()
    assert known["acceptance"][0, 0].sum() <= 7.0
    bandit = {name: values for name, values in known.items() if name.startswith("@when-1/")}
    assert sum(values.sum() for values in bandit.values()) > 30.0


def test_policies_that_verify_otherwise_or_use_others_are_refused(tmp_path: Path) -> None:
    """A file that uses itself as well: none is read for ever."""
    with pytest.raises(PolicyError, match=r"^p:7:43: spec\.when\.0\.use: static-3 verifies otherwise"):
        controller(
            "[{batch-size: {at-least: 2}, use: static-3}]", choose=f"{STATIC}  verification: {{method: rejection}}\n"
        )
    inner = tmp_path / "inner.yaml"
    for used in ("static-3", inner):
        inner.write_text(f"{HEAD}{STATIC}  when: [{{batch-size: {{at-least: 2}}, use: {used}}}]\n")
        with pytest.raises(PolicyError, match=rf"^p:6:43: .*inner\.yaml:6:43: .*cannot use '.*{used}'"):
            controller(f"[{{batch-size: {{at-least: 2}}, use: {inner}}}]")
    arms = f"  choose: {{algorithm: ucb, arms: [{{policy: {inner}}}, {{depth: 0}}]}}\n"
    with pytest.raises(PolicyError, match=r"^p:5:44: .*inner\.yaml:6:43: .*cannot use"):
        parse_policy_spec(HEAD + arms, "p")


def test_a_policy_that_is_sent_names_no_files(tmp_path: Path) -> None:
    """Whoever may send one must not learn what else is on the machine, nor have it read."""
    mine = parse_policy_spec(f"{HEAD}{STATIC}")
    using = parse_policy_spec(f"{HEAD}{STATIC}  when: [{{batch-size: {{at-least: 2}}, use: off}}]\n")
    find = found_among({"mine": mine, "using": using})
    secret = tmp_path / "secret.yaml"
    secret.write_text("password")
    when = f"{HEAD}{STATIC}  when: [{{batch-size: {{at-least: 2}}, use: %s}}]\n"
    arms = f"{HEAD}  choose: {{algorithm: ucb, arms: [{{policy: %s}}, {{depth: 0}}]}}\n"
    for text in (when, arms):
        for path in (str(secret), str(tmp_path / "gone.yaml"), "/etc/passwd"):
            with pytest.raises(PolicyError, match=r"^p:\d:\d+: .*uses others by their names, no files") as refused:
                parse_policy_spec(text % path, "p", find=find)
            assert "mine, using, draft-temperature" in str(refused.value)
            assert "--policy FILE" in str(refused.value)
        with pytest.raises(PolicyError, match="using uses off, so no other policy can use it"):
            parse_policy_spec(text % "using", "p", find=find)
        assert parse_policy_spec(text % "mine", "p", find=find).used == {"mine": mine}
        assert parse_policy_spec(text % "off", "p", find=find).used.keys() == {"off"}


def test_the_signature_tells_who_decides_and_when(tmp_path: Path) -> None:
    """Each has learned from the rounds that the others left to it: other conditions or policies leave it others."""
    inner = tmp_path / "inner.yaml"

    def of(depth: int, least: int = 2, arm: bool = False) -> str:
        inner.write_text(f"{HEAD}  choose: {{algorithm: static, depth: {depth}}}\n")
        when = f"{HEAD}{STATIC}  when: [{{batch-size: {{at-least: {least}}}, use: {inner}}}]\n"
        arms = f"{HEAD}  choose: {{algorithm: ucb, arms: [{{policy: {inner}}}, {{depth: 0}}]}}\n"
        return signature(parse_policy_spec(arms if arm else when))

    assert of(2) == of(2)
    assert len({of(2), of(3), of(2, least=3), of(2, arm=True), of(3, arm=True)}) == 5


def test_a_reload_may_ask_for_keys_of_requests_that_run() -> None:
    one = controller("[{batch-size: {at-least: 9}, use: off}]")
    one.start(0, Request("0", (1,), key="gold"))
    spec = parse_policy_spec(f"{HEAD}{STATIC}  when: [{{api-key: gold, use: static-3}}]\n", "p", one.labels, DRAFTERS)
    one.adopt("mine", build_policy(spec, table(), 3, one.labels))
    assert one.decide(signals([7])).depths.tolist() == [3]
