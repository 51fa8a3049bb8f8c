"""A draft that is left out comes back within a bounded number of steps, whatever came before, at a bounded price."""

from __future__ import annotations

import pytest

from adaptspec.hosts.skipping import Skipping
from adaptspec.request import SpeculationParams
from tests.policies.hosted import SLOW_DRAFT, HostEngine, HostRequest, piloted, serve
from tests.policies.tapes import agreements


def skipping(policy: str = "goodput") -> HostEngine:
    return piloted(SLOW_DRAFT, skip_draft=True, policy=policy)


def recovery(world: HostEngine, batch: int, length: int) -> int:
    """Steps until 50 of them have earned half as much again as without drafts."""
    for step in range(1, 100_000):
        before = world.tokens
        serve(world, (0.9,), batch, 50, length=length)
        if world.tokens - before > 1.5 * 50 * batch:
            return 50 * step
    raise AssertionError("never")


@pytest.mark.parametrize(
    ("policy", "batch", "length"),
    [
        ("goodput", 4, 128),
        ("goodput", 1, 128),
        ("goodput", 16, 128),
        ("goodput", 4, 32),
        ("goodput", 4, 1000),
    ],
)
@pytest.mark.parametrize("useless", [500, 3000])
def test_it_comes_back(policy: str, batch: int, length: int, useless: int) -> None:
    """A few thousand tokens of a batch of 4 after drafts have begun to be good, and those are still few."""
    world = skipping(policy)
    serve(world, (0.02,), batch, useless, length=length)
    assert recovery(world, batch, length) <= 1500 + 2 * length
    assert world.pilot is not None
    assert not world.pilot.errors
    world.pilot.close()


def test_who_wants_no_drafts_puts_nobody_to_sleep() -> None:
    """Where all have opted out the draft is skipped, and the first that has not is read whole and drafts."""
    world = skipping("static-3")
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


def test_awake_and_asleep() -> None:
    """32 steps of nothing put it to sleep, longer each time; one that comes after that wakes it for 16; being awake as
    long as it slept makes the next sleep short.
    """
    one, slept = Skipping(allowed=True), []
    step = 0
    for _ in range(7):
        while not one.falls_asleep(step, drafts=False, able=True):
            assert one.keeps(step)
            step += 1
        fell = step
        while not one.keeps(step):
            step += 1
        slept.append(step - fell)
    assert slept == [128, 256, 512, 1024, 1024, 1024, 1024]
    for _ in range(1100):
        assert not one.falls_asleep(step, drafts=True, able=True)
        step += 1
    while not one.falls_asleep(step, drafts=False, able=True):
        step += 1
    assert not one.keeps(step + 63)
    assert one.keeps(step + 64)
    off = Skipping(allowed=False)
    assert not any(off.falls_asleep(step, drafts=False, able=True) for step in range(100))
