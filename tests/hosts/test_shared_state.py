"""What engines of a fleet have learned adds up, once each, and outlives any of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.learned_state import FILE, PolicyState, read_state
from adaptspec.control.tasks import MAX_ADDED, TASKS
from adaptspec.errors import StateError
from adaptspec.hosts.pilot import Pilot
from adaptspec.hosts.settings import PilotSettings
from adaptspec.hosts.shared_state import SharedState
from tests.policies.hosted import USUAL, VLLM, HostEngine, piloted, serve


def states(*values: float, signature: str = "s") -> dict[str, PolicyState]:
    return {"p": PolicyState(signature, {"n": np.array(values)})}


def values(known: Mapping[str, PolicyState]) -> list[float]:
    return known["p"].arrays["n"].tolist()


def engine(folder: Path, *, load: bool = True) -> SharedState:
    made = SharedState(folder, "pair")
    if load:
        made.load(())
    return made


def test_engines_add_what_they_learn(tmp_path: Path) -> None:
    """Each knows both, writes its own alone, and counts nothing twice, however often they look."""
    one, two = engine(tmp_path), engine(tmp_path)
    assert one.place != two.place
    first, second = states(3.0, 0.0), states(1.0, 5.0)
    for _ in range(4):
        first, second = one.exchange(first, ()), two.exchange(second, ())
    assert values(first) == values(second) == [4.0, 5.0]
    one.close()
    two.close()
    again = SharedState(tmp_path, "pair")
    assert values(again.load(())[0]) == [4.0, 5.0]
    again.close()


def test_what_could_not_be_written_is_written_by_the_next_exchange(tmp_path: Path) -> None:
    """Though this engine has learned nothing since: the others wait for it."""
    one, two = engine(tmp_path), engine(tmp_path)
    (one.place / FILE).mkdir()
    known = one.exchange(states(3.0, 1.0), ())
    (one.place / FILE).rmdir()
    assert values(two.exchange(states(0.0, 0.0), ())) == [0.0, 0.0]
    known = one.exchange(known, ())
    assert read_state(one.place / FILE).policies["p"].arrays["n"].tolist() == [3.0, 1.0]
    assert values(two.exchange(states(0.0, 0.0), ())) == [3.0, 1.0]
    one.close()
    two.close()


@given(
    st.lists(st.floats(0.0, 100.0), min_size=3, max_size=3),
    st.lists(st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 10.0)), min_size=3, max_size=3), max_size=8),
)
def test_nothing_is_ever_counted_twice(
    tmp_path_factory: pytest.TempPathFactory, start: list[float], rounds: list[list[tuple[float, float]]]
) -> None:
    """Of what one engine learned and the other only heard of, no more is ever written in all than was learned, however
    it fades and whatever comes to it.
    """
    folder = tmp_path_factory.mktemp("fleet")
    one, two = engine(folder), engine(folder)
    known, other = one.exchange(states(*start), ()), states(0.0, 0.0, 0.0)
    real = np.array(start)  # what there would be if each engine's own faded and grew as the whole does
    for changes in rounds:
        other = two.exchange(other, ())
        fade, new = np.array(changes).T
        known = {"p": PolicyState("s", {"n": known["p"].arrays["n"] * fade + new})}
        real = real * fade + new
        known = one.exchange(known, ())
        assert (np.array(values(known)) <= real + 1e-6).all()
        assert min(values(known)) >= -1e-9
    one.close()
    two.close()


FIRST, SIZE = 1 + len(TASKS), 1 + len(TASKS) + MAX_ADDED


def by_task(*counts: float) -> dict[str, PolicyState]:
    """What was counted of users' own tasks, by their numbers."""
    sums = np.zeros((SIZE, 1))
    sums[FIRST : FIRST + len(counts), 0] = counts
    return {"p": PolicyState("s", {"sums.task": sums})}


def own(known: Mapping[str, PolicyState]) -> list[float]:
    """The counts of the first three of them."""
    found: list[float] = known["p"].arrays["sums.task"][FIRST : FIRST + 3, 0].tolist()
    return found


def test_engines_that_met_tasks_in_other_orders_share_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By name, each in its own order: what only one has met the other knows of when it meets it, and not before."""
    one, two = engine(tmp_path), engine(tmp_path)
    first, second = by_task(3.0, 5.0), by_task(1.0, 2.0, 4.0)
    for _ in range(3):
        first, second = one.exchange(first, ("a", "b")), two.exchange(second, ("b", "c", "a"))
    assert own(first) == [7.0, 6.0, 0.0]
    assert own(second) == [6.0, 2.0, 7.0]
    first = one.exchange(first, ("a", "b", "c"))
    assert own(first) == own(one.exchange(first, ("a", "b", "c"))) == [7.0, 6.0, 2.0]
    assert own(two.exchange(second, ("b", "c", "a"))) == [6.0, 2.0, 7.0]
    assert not caplog.records
    one.close()
    two.close()


def test_damage_and_other_models_are_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, two, strange = engine(tmp_path), engine(tmp_path), SharedState(tmp_path / "x", "other models")
    two.exchange(states(1.0, 1.0), ())
    (two.place / FILE).write_text("{")
    strange.exchange(states(9.0, 9.0), ())
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / FILE).write_bytes((strange.place / FILE).read_bytes())
    assert values(one.exchange(states(2.0, 0.0), ())) == [2.0, 0.0]
    assert "is not used" in caplog.text
    for engine_ in (one, two, strange):
        engine_.close()


def test_a_place_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError):
        SharedState(tmp_path / "file", "pair")


def test_a_pilot_goes_on_where_others_stopped(tmp_path: Path) -> None:
    """What one engine has learned, a new one knows when it begins; what it learns itself comes on top, once."""
    counts = []
    for folder, seed in ((tmp_path, 0), (tmp_path, 1), (tmp_path / "new", 1), (None, 1)):
        world = piloted(rows=8, seed=seed, models={"target": "t"}, state_dir=folder, state_seconds=1e-6)
        assert world.pilot is not None
        serve(world, (0.75,), 4, 200)
        world.pilot.look()
        serve(world, (0.75,), 4, 20)
        counts.append(world.pilot.learned()["goodput"].arrays["acceptance"][0, 0, 0])
        world.pilot.close()
        assert not world.pilot.errors
    assert counts[1] > counts[2] + 1.0
    assert counts[2] == pytest.approx(counts[3], rel=0.02)


def learning(folder: Path, state: type[SharedState]) -> Pilot:
    """A pilot that has something to share."""
    world = HostEngine(USUAL)
    settings = PilotSettings(state_dir=folder, state_seconds=1e-6)
    pilot = world.pilot = Pilot(settings, VLLM, 8, models={"target": "t"}, clock=lambda: world.now, state=state)
    serve(world, (0.75,), 4, 200)
    return pilot


def test_an_end_while_a_folder_does_not_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is waited for some seconds, no second exchange begins meanwhile, and the log says what is not saved."""
    begun, answers, ended = threading.Event(), threading.Event(), list[bool]()

    class Hanging(SharedState):
        def exchange(self, now: Mapping[str, PolicyState], tasks: Sequence[str]) -> dict[str, PolicyState]:
            assert not begun.is_set()
            begun.set()
            ended.append(answers.wait(30.0))
            return dict(now)

    pilot = learning(tmp_path, Hanging)
    assert begun.wait(30.0)
    pilot.close()
    assert ended == []
    answers.set()
    assert "does not answer" in caplog.text


def test_an_end_at_which_nothing_can_be_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It ends, the log says so, and the folder is free for another engine."""

    class Failing(SharedState):
        def exchange(self, now: Mapping[str, PolicyState], tasks: Sequence[str]) -> dict[str, PolicyState]:
            raise OSError("stale handle")

    learning(tmp_path, Failing).close()
    assert "what was learned last is not saved" in caplog.text
    again = SharedState(tmp_path, "pair")
    assert again.place.name.endswith("-0")
    again.close()
