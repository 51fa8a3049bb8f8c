"""Which policy meets which traffic: shares of canaries, and policies that others use."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.language.loader import found_among, load_policy_spec, parse_policy_spec
from adaptspec.control.rollout import CanarySpec, Shares
from adaptspec.errors import ConfigError, PolicyError

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


def test_policies_that_use_others_are_refused(tmp_path: Path) -> None:
    inner = tmp_path / "inner.yaml"
    inner.write_text(f"{HEAD}{STATIC}  when: [{{task: code, use: static-3}}]\n")
    with pytest.raises(PolicyError, match=r"^p:6:28: .*inner\.yaml:6:28: .*cannot use 'static-3'"):
        parse_policy_spec(f"{HEAD}{STATIC}  when: [{{task: code, use: {inner}}}]\n", "p")


def test_a_policy_cannot_use_itself(tmp_path: Path) -> None:
    """By its file or by its name, read from a file or sent; also where one of its name is served already."""
    path = tmp_path / "file.yaml"
    for used in ("file.yaml", path, "mine"):
        path.write_text(f"{HEAD}{STATIC}  when: [{{task: code, use: {used}}}]\n")
        with pytest.raises(PolicyError, match=r"file\.yaml:6:28: spec\.when\.0\.use: a policy cannot use itself"):
            load_policy_spec(path)
    served = {"mine": parse_policy_spec(f"{HEAD}{STATIC}  when: [{{task: code, use: off}}]\n")}
    with pytest.raises(PolicyError, match=r"^p:6:28: spec\.when\.0\.use: a policy cannot use itself"):
        parse_policy_spec(path.read_text(), "p", find=found_among(served))


def test_a_policy_that_is_sent_names_no_files(tmp_path: Path) -> None:
    """A client that may send one must not learn what else is on the machine, nor have it read."""
    mine = parse_policy_spec(f"{HEAD}{STATIC}")
    using = parse_policy_spec(f"{HEAD}{STATIC}  when: [{{task: code, use: off}}]\n")
    find = found_among({"mine": mine, "using": using})
    secret = tmp_path / "secret.yaml"
    secret.write_text("password")
    when = f"{HEAD.replace('mine', 'sent')}{STATIC}  when: [{{task: code, use: %s}}]\n"
    for path in (str(secret), str(tmp_path / "gone.yaml"), "/etc/passwd"):
        with pytest.raises(PolicyError, match=r"^p:\d:\d+: .*uses others by their names, no files") as refused:
            parse_policy_spec(when % path, "p", find=find)
        assert "mine, using, draft-temperature" in str(refused.value)
        assert "--policy FILE" in str(refused.value)
    with pytest.raises(PolicyError, match="using uses off, so no other policy can use it"):
        parse_policy_spec(when % "using", "p", find=find)
    assert parse_policy_spec(when % "mine", "p", find=find).used == {"mine": mine}
    assert parse_policy_spec(when % "off", "p", find=find).used.keys() == {"off"}
