"""Memory, descriptors and latency over time; how long says the marker."""

from __future__ import annotations

import pytest

from tests.chaos.soak import soak


@pytest.fixture
def minutes(pytestconfig: pytest.Config, whole: bool) -> float:
    """Thirty with all of chaos, ten with `-m soak`, seconds among all other tests."""
    return 30.0 if whole else 10.0 if str(pytestconfig.getoption("markexpr", "")) == "soak" else 0.03


@pytest.mark.soak
def test_nothing_grows_under_mixed_load(minutes: float) -> None:
    """Less than 1 MB in ten minutes, no descriptor or thread more, streams as steady at the end as before."""
    verdict = soak(minutes, every=2.0 if minutes > 1 else 0.5, least=12)
    assert not verdict.failures
    assert verdict.descriptors_more <= 4
    if minutes >= 10:
        assert verdict.megabytes_per_10_minutes < 1.0
        assert verdict.p99_halves[1] < 2.0 * verdict.p99_halves[0]
