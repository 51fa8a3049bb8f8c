"""Shares of traffic: stable, near their percentage, growing without exchanging anybody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.rollout import LIVE, CanarySpec, ShadowSpec, Shares
from adaptspec.errors import ConfigError

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


def test_only_canaries_take_shares() -> None:
    """Live policies and shadows get nothing by chance."""
    shares = Shares({"live": LIVE, "watch": ShadowSpec(mode="shadow")})
    assert all(shares.taker(i) is None for i in IDS[:50])
    assert {Shares({"all": canary(100.0)}).taker(i) for i in IDS[:50]} == {"all"}


def test_more_than_everything_cannot_be_shared() -> None:
    """The error names who takes too much."""
    with pytest.raises(ConfigError, match="a, b take 110 percent"):
        Shares({"a": canary(60.0), "b": canary(50.0)})
