"""Every shipped policy keeps its promises; here at one seed, and all of them over five seeds nightly."""

from __future__ import annotations

import pytest

from adaptspec.control.language.library import shipped_policies
from adaptspec.simulation.simulator import replay
from tests.policies.promises import CORE, OTHERS, PROMISES, SEEDS, Promise, broken, measured
from tests.policies.world import OFF, seeded, spec_of
from tests.policies.worlds import WORLDS

_BEST_IS = 0.97  # least share of the best fixed depth that the declared one has


@pytest.mark.whole
@pytest.mark.parametrize("promise", CORE, ids=str)
def test_a_promise_is_kept(promise: Promise) -> None:
    """At one seed."""
    mean, _ = measured(promise, 1)
    assert not broken(promise, mean)


@pytest.mark.nightly
@pytest.mark.parametrize("promise", PROMISES, ids=str)
def test_a_promise_is_kept_on_average(promise: Promise) -> None:
    """Over five seeds."""
    mean, _ = measured(promise, SEEDS)
    assert not broken(promise, mean)


@pytest.mark.nightly
@pytest.mark.parametrize("name", WORLDS)
def test_the_best_fixed_depth_is_the_best(name: str) -> None:
    """The depth that a world declares is as good as any other, so shares of it mean what they say."""
    world = WORLDS[name]
    assert world.best_goodput() >= _BEST_IS * max(world.fixed(setting) for setting in world.settings)


def test_every_shipped_policy_has_promises() -> None:
    """All but those that a tape cannot follow, and plain decoding, which is what others are held against."""
    promised = {promise.policy for promise in PROMISES}
    shipped = {path.stem for path in shipped_policies()}
    assert shipped - promised == {"off", "lookahead"}
    assert promised - shipped == OTHERS.keys()


def test_the_table_is_sound() -> None:
    """Each promise once, in a world that exists; every world has one; no policy may lose much to plain decoding."""
    pairs = [(promise.policy, promise.world) for promise in PROMISES]
    assert len(set(pairs)) == len(pairs)
    assert {world for _, world in pairs} == WORLDS.keys()
    assert all(promise.best > 0.5 and promise.off > 0.5 for promise in PROMISES)
    assert all(promise.off >= 0.85 for promise in PROMISES if WORLDS[promise.world].best == OFF)


def test_what_is_measured_is_deterministic() -> None:
    """The same seed gives the same figures; another one gives others."""
    world = WORLDS["even-4"]
    assert world.serve("goodput", 0) == world.serve("goodput", 0) != world.serve("goodput", 1)


def test_a_broken_promise_says_what_was_promised() -> None:
    """Policy, world, the share that was measured, and the bounds."""
    kept = Promise("static-3", "even-4", 0.5, 0.5)
    mean, _ = measured(kept, 1)
    assert broken(kept, mean) == []
    (problem,) = broken(Promise("static-3", "even-4", 2.0, 0.5), mean)
    assert problem == f"static-3 in even-4: {mean.best:.3f} of the best fixed depth, promised 2 to inf"


def test_random_policies_draw_anew_for_every_seed() -> None:
    """The seed of a world is that of its policy, too: the spread over seeds includes the luck of the draws."""
    for name in ("thompson", "exp3"):
        assert seeded(spec_of(name), 3).spec.choose.model_dump()["seed"] == 3
    ucb = spec_of("ucb")
    assert seeded(ucb, 3) is ucb
    world, thompson = WORLDS["bandits-even"], spec_of("thompson")
    one, other = (replay(seeded(thompson, seed), world.stream(0), world.machine.costs()) for seed in (0, 1))
    assert one.goodput != other.goodput
