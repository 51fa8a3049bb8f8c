"""A draft that is left out comes back within a bounded number of steps, whatever came before, at a bounded price."""

from __future__ import annotations

import pytest

from adaptspec.request import SpeculationParams
from tests.policies.hosted import SLOW_DRAFT, HostEngine, HostRequest, piloted, serve
from tests.policies.tapes import agreements

# Seconds that a reading of the clock takes: by the second, a decision is dear and serves several steps.
READINGS = pytest.mark.parametrize("reading", [0.0, 0.0005])


def skipping(policy: str, reading: float = 0.0) -> HostEngine:
    return piloted(SLOW_DRAFT, skip_draft=True, policy=policy, reading=reading)


def recovery(world: HostEngine, batch: int, length: int) -> int:
    """Steps until 50 of them have earned half as much again as without drafts."""
    for step in range(1, 100_000):
        before = world.tokens
        serve(world, (0.9,), batch, 50, length=length)
        if world.tokens - before > 1.5 * 50 * batch:
            return 50 * step
    raise AssertionError("never")


@pytest.mark.parametrize("length", [32, 128])
def test_it_comes_back(length: int) -> None:
    """A few thousand tokens of a batch of 4 after drafts have begun to be good, and those are still few."""
    world = skipping("goodput")
    serve(world, (0.02,), 4, 3000, length=length)
    assert recovery(world, 4, length) <= 1500 + 2 * length
    assert world.pilot is not None
    assert not world.pilot.errors
    world.pilot.close()


@READINGS
def test_who_wants_no_drafts_puts_nobody_to_sleep(reading: float) -> None:
    """Where all have opted out the draft is skipped, and the first that has not is read whole and drafts."""
    world = skipping("static-3", reading)
    serve(world, (0.9,), 4, 100)
    while world.running:
        world.step()
    world.add(HostRequest("none", agreements(0.9, 5000), SpeculationParams(max_depth=0)))
    for _ in range(100):
        world.step()
    assert not world.running[0].cached
    world.add(HostRequest("any", agreements(0.9, 500)))
    for _ in range(3):
        world.step()
    assert [one.drafted for one in world.running] == [0, 3]
    assert world.pilot is not None
    world.pilot.close()


@READINGS
def test_rows_with_a_hole_stay_off(reading: float) -> None:
    """A request of which the draft has missed a step is never drafted for again; later ones are tried."""
    world, held = skipping("goodput", reading), set[str]()
    for _ in range(1200):
        serve(world, (0.02,), 4, 1, length=64)
        held |= {one.name for one in world.running if not one.cached}
        assert not any(one.drafted for one in world.running if one.name in held and not one.cached)
    assert held
    assert world.pilot is not None
    world.pilot.close()
