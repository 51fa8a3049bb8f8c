"""Two engines that share what they learn come to know what one would of all their traffic.

Counts fade with each observation of an engine's own. So two that never hear of each other remember twice as many as one
does: their sum is that of one whose counts fade half as fast, and exactly one's where nothing fades. Those that hear of
each other remember less than that, and at least as much as one. Rates of acceptance and depths hang on that by chance
alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.cli import main
from adaptspec.control.acceptance import Acceptance, AcceptanceSettings
from adaptspec.control.cost import CostTable
from adaptspec.control.policy import BatchSignals
from adaptspec.control.state import PolicyState, read_state
from adaptspec.control.tasks import TASKS
from adaptspec.hosts.pilot import Pilot
from adaptspec.hosts.served_policies import ServedPolicies
from adaptspec.hosts.settings import PilotSettings
from adaptspec.hosts.shared_state import SharedState
from adaptspec.hosts.watchers import pair_of
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.types import FloatArray, IntArray
from tests.policies.hosted import USUAL, VLLM, HostEngine, HostRequest
from tests.policies.tapes import agreements

DEPTH, ROWS = VLLM.deepest, 8
RATES = {"code": 0.9, "json": 0.8, "chat": 0.6, "story": 0.4}  # chance of a token, by task
MODELS = {"target": "t"}
Rounds = Sequence[tuple[int, int, int]]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, DEPTH), st.integers(0, DEPTH), st.integers(0, DEPTH)), max_size=60
    )
)
def test_counts_of_two_are_those_of_one_that_fades_half_as_fast(
    pairs: Sequence[tuple[int, int, int, int]],
) -> None:
    """Rounds of a task go to either in turn. Then what each token counts differs by half a fade, 0.1 %; and by nothing
    where nothing fades.
    """
    rounds = [[(task, deep, kept) for task, deep, *both in pairs for kept in (both[which],)] for which in (0, 1)]
    joined = [one for pair in zip(*rounds, strict=True) for one in pair]
    fade = AcceptanceSettings.traffic
    two = counted(rounds[0], fade) + counted(rounds[1], fade)
    one = counted(joined, fade**0.5)
    assert (one <= two + 1e-9).all()
    assert (two <= one / fade**0.5 + 1e-9).all()
    assert (counted(rounds[0], 1.0) + counted(rounds[1], 1.0) == counted(joined, 1.0)).all()


def counted(rounds: Rounds, fade: float) -> FloatArray:
    """Rounds of a task, so many drafted and kept, one after the other."""
    made = Acceptance(1, 4, DEPTH, replace(AcceptanceSettings(), traffic=fade))
    for task, drafted, kept in rounds:
        made.observe(np.array([-1]), np.array([task]), np.array([drafted]), np.array([min(kept, drafted)]))
    return made.counts()


@dataclass(frozen=True)
class Fleet:
    """What two engines know of a tape's halves and one of the whole, and what rounds take there."""

    two: Mapping[str, PolicyState]
    one: Mapping[str, PolicyState]
    costs: CostTable
    places: Sequence[Path]


@pytest.fixture(scope="module", params=["at the end", "often"])
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """200 requests in four tasks, four at a time in each engine; the two hear of each other, or do not."""
    folder, chance = tmp_path_factory.mktemp("fleet"), np.random.default_rng(3)
    tape = []
    for number in range(200):
        task = list(RATES)[chance.integers(4)]
        tape.append((task, agreements(RATES[task], 128, number)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("adaptspec.hosts.desk._LOOK_SECONDS", 1e6)  # files are looked at when we say so
        often = request.param == "often"
        two = [engine(folder / "two", often=often) for _ in range(2)]
        (one,) = alone = [engine(folder / "one")]
        run(two, [tape[::2], tape[1::2]])
        run(alone, [tape])
    assert one.pilot is not None
    places = sorted(path for path in (folder / "two").iterdir())
    return Fleet(known_in(folder / "two"), known_in(folder / "one"), one.pilot._costs, places)


def engine(folder: Path, *, often: bool = False) -> HostEngine:
    world = HostEngine(USUAL)
    settings = PilotSettings(state_dir=folder, state_seconds=1e-9 if often else 1e9)
    world.pilot = Pilot(settings, VLLM, ROWS, models=MODELS, clock=lambda: world.now)
    return world


def run(worlds: Sequence[HostEngine], tapes: Sequence[Sequence[tuple[str, np.ndarray]]]) -> None:
    waiting = [
        [HostRequest(str(number), text, SpeculationParams(task=task)) for number, (task, text) in enumerate(tape)]
        for tape in tapes
    ]
    while any(waiting):
        for world, guests in zip(worlds, waiting, strict=True):
            before = world.added
            while guests and len(world.running) < 4:
                world.add(guests.pop(0))
            world.step(16 * (world.added - before))
            assert world.pilot is not None
            if world.steps % 50 == 0:
                world.pilot._desk.work()
    for world in worlds:
        assert world.pilot is not None
        world.pilot.close()
        assert not world.pilot.errors


def known_in(folder: Path) -> Mapping[str, PolicyState]:
    """What an engine that begins there knows."""
    place = SharedState(folder, pair_of(MODELS))
    states, _ = place.load(())
    place.close()
    return states


@pytest.mark.whole
def test_the_merged_states_of_two_say_what_one_says(fleet: Fleet) -> None:
    """How likely tokens are, by task and depth: wherever both have seen 100, within what so few leave to chance."""
    two, one = (state["goodput"].arrays["acceptance"] for state in (fleet.two, fleet.one))
    tasks = [2 + TASKS.index(task) for task in RATES]  # behind all traffic, and what is of no task
    (seen, lost), (of, gone) = (counts[tasks].swapaxes(0, 1) for counts in (two, one))
    enough = np.minimum(seen, of) >= 100.0
    assert enough.sum(axis=1).min() >= 2  # depths of the task that has fewest
    assert (seen >= 0.95 * of)[:, 0].all()
    assert (seen <= 2.05 * of)[:, 0].all()
    assert np.abs(lost[enough] / seen[enough] - gone[enough] / of[enough]).max() <= 0.05


@pytest.mark.whole
def test_depths_from_the_merged_states_are_those_of_one(fleet: Fleet) -> None:
    """For most of the next requests, alone and in batches, of one task and of all; others earn at least 0.98."""
    same: list[bool] = []
    for batch in (1, 2, 4, 8):
        for tasks in (*([task] for task in RATES), list(RATES)):
            two, one = (depths(state, fleet.costs, batch, tasks) for state in (fleet.two, fleet.one))
            same += (two == one).tolist()
            assert earned(two, tasks) >= 0.98 * earned(one, tasks), (batch, tasks, two, one)
    assert np.mean(same) >= 0.85


@pytest.mark.whole
def test_the_command_merges_as_engines_do(fleet: Fleet, tmp_path: Path) -> None:
    """What `adaptspec state merge` writes of two places is what an engine knows that begins beside them."""
    assert main(["state", "merge", *map(str, fleet.places), "-o", str(tmp_path / "merged.json")]) == 0
    told = read_state(tmp_path / "merged.json").policies
    assert told.keys() == fleet.two.keys()
    for name, state in fleet.two.items():
        for key, values in state.arrays.items():
            np.testing.assert_allclose(told[name].arrays[key], values, rtol=1e-12)


def depths(state: Mapping[str, PolicyState], costs: CostTable, batch: int, tasks: Sequence[str]) -> IntArray:
    """Of so many new requests in an engine that knows so much."""
    served = ServedPolicies(("goodput",), VLLM, ROWS)
    controller = served.controller(costs)
    served.restore(controller, state)
    for row in range(batch):
        wishes = SpeculationParams(task=tasks[row % len(tasks)])
        controller.start(row, Request(str(row), range(16), SamplingParams(128, 0.0), wishes))
    none = np.zeros(batch, dtype=np.int64)
    rows, limits = np.arange(batch), np.full(batch, DEPTH)
    signals = BatchSignals(rows, none, none + 16, limits, none[None], none[None], none, 0, 0, 1.0)
    return controller.decide(signals).depths


def earned(depths: IntArray, tasks: Sequence[str]) -> float:
    """Tokens per second that are to be expected of a step."""
    rates = [RATES[tasks[row % len(tasks)]] for row in range(len(depths))]
    tokens = sum(sum(rate**place for place in range(depth + 1)) for rate, depth in zip(rates, depths, strict=True))
    rows, passes = len(depths), max(int(depths.max()), 1)
    return tokens / (USUAL.verify(rows + int(depths.sum())) + USUAL.step(rows) * passes)
