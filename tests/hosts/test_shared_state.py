"""What engines of a fleet have learned adds up, once each, and outlives any of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.state import FILE, PolicyState, read_state
from adaptspec.control.tasks import MOST_OWN, TASKS
from adaptspec.errors import StateError
from adaptspec.hosts import desk
from adaptspec.hosts.pilot import Pilot
from adaptspec.hosts.settings import PilotSettings
from adaptspec.hosts.shared_state import SharedState
from adaptspec.request import SpeculationParams
from tests.policies.hosted import USUAL, VLLM, HostEngine, HostRequest, serve
from tests.policies.tapes import agreements


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


FIRST, SIZE = 1 + len(TASKS), 1 + len(TASKS) + MOST_OWN


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


def test_after_a_restart_tasks_that_the_policies_name_come_first(tmp_path: Path) -> None:
    """Then what this engine had met, and then what others have: no count is lost for a number that has changed."""
    one, two = engine(tmp_path), engine(tmp_path)
    one.exchange(by_task(3.0, 5.0), ("a", "b"))
    two.exchange(by_task(1.0), ("c",))
    one.close()
    again = SharedState(tmp_path, "pair")
    known, names = again.load(("b",))
    assert names == ("b", "a", "c")
    assert own(known) == [5.0, 3.0, 1.0]
    assert own(again.exchange(known, names)) == [5.0, 3.0, 1.0]
    again.close()
    two.close()


def test_what_cannot_be_shared_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By each engine of each other, however often it looks: other arms, and what is damaged."""
    one, two = engine(tmp_path), engine(tmp_path)
    known = states(1.0, 2.0)
    for number in range(3):
        two.exchange(states(5.0, float(number), signature="other arms"), ())
        (tmp_path / "broken").mkdir(exist_ok=True)
        (tmp_path / "broken" / FILE).write_text("{" * number)
        known = one.exchange(known, ())
    assert values(known) == [1.0, 2.0]
    assert sorted("other arms" in record.message for record in caplog.records) == [False, False, True, True]
    one.close()
    two.close()


def test_another_policy_of_the_same_shapes_takes_nothing_away(tmp_path: Path) -> None:
    """One that was changed on one engine first, or long ago on one that is gone: its counts mean something else."""
    one, two = engine(tmp_path), engine(tmp_path)
    two.exchange(states(900.0, 900.0, signature="other arms"), ())
    known = states(100.0, 50.0)
    for _ in range(3):
        known = one.exchange(known, ())
    assert values(known) == [100.0, 50.0]
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


def piloted(folder: Path, seed: int) -> HostEngine:
    world = HostEngine(USUAL, seed=seed)
    settings = PilotSettings(state_dir=folder, state_seconds=1e-6)
    world.pilot = Pilot(settings, VLLM, 8, models={"target": "t"}, clock=lambda: world.now)
    return world


def test_a_pilot_goes_on_where_others_stopped(tmp_path: Path) -> None:
    """What one engine has learned, a new one knows when it begins; what it learns itself comes on top."""
    counts = []
    for seed in range(2):
        world = piloted(tmp_path, seed)
        serve(world, (0.75,), 4, 200)
        assert world.pilot is not None
        world.pilot._desk.work()
        serve(world, (0.75,), 4, 20)
        counts.append(world.pilot._controller.policies["goodput"].learned()["acceptance"][0, 0, 0])
        world.pilot.close()
        assert not world.pilot.errors
    fresh = piloted(tmp_path / "new", 1)
    serve(fresh, (0.75,), 4, 220)
    assert fresh.pilot is not None
    alone = fresh.pilot._controller.policies["goodput"].learned()["acceptance"][0, 0, 0]
    fresh.pilot.close()
    assert counts[1] > alone + 1.0


def test_pilots_share_tasks_that_clients_named_in_other_orders(tmp_path: Path) -> None:
    """Each knows of a task of the other's by its name, and all that was counted of it is there when both have gone."""
    pilots = [piloted(tmp_path, seed) for seed in range(2)]
    for world, names in zip(pilots, (("ours", "yours"), ("yours", "ours")), strict=True):
        for number, name in enumerate(names):
            rate = 0.9 if name == "ours" else 0.1
            world.add(HostRequest(str(number), agreements(rate, 400, number), SpeculationParams(task=name)))
        while world.running:
            world.step()
        assert world.pilot is not None
        world.pilot._desk.work()
        world.pilot.close()
        assert not world.pilot.errors
    late = piloted(tmp_path, 3)
    assert late.pilot is not None
    labels, known = late.pilot._desk.policies.labels.tasks, late.pilot._desk._known["goodput"].arrays["acceptance"]
    assert labels.own == ("ours", "yours")
    kept = [1.0 - rejected / reached for reached, rejected in known[1 + FIRST : 3 + FIRST, :, 0]]
    assert kept[0] > 0.6
    assert kept[1] < 0.4
    files = [read_state(path).policies["goodput"].arrays["acceptance"] for path in tmp_path.glob(f"*/{FILE}")]
    assert known[0].sum() == pytest.approx(sum(counts[0].sum() for counts in files))
    assert known[1 + FIRST : 3 + FIRST].sum() == pytest.approx(sum(counts[1 + FIRST :].sum() for counts in files))
    late.pilot.close()


def learning(folder: Path, seed: int) -> Pilot:
    """A pilot with a first state to be saved."""
    world = piloted(folder, seed)
    serve(world, (0.75,), 4, 200)
    assert world.pilot is not None
    assert world.pilot._desk._to_save is not None
    return world.pilot


def test_what_others_have_told_last_is_not_taken_from_ones_own(tmp_path: Path) -> None:
    """At the end an answer may be there that nobody has looked at yet: what it says is known, and others'."""
    one, two = learning(tmp_path, 0), learning(tmp_path, 1)
    two._desk.work()
    two.close()
    alone = one._controller.policies["goodput"].learned()["acceptance"][0].sum()
    one._desk.work()
    place = one._desk._state.place  # type: ignore[union-attr]
    one.close()
    kept = read_state(place / FILE).policies["goodput"].arrays["acceptance"][0].sum()
    assert kept == pytest.approx(alone, rel=0.02)  # what has faded since is put down to all alike


def test_an_end_while_a_folder_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two threads never exchange at once: where one still waits, the other leaves it at that, and says so."""
    pilot = learning(tmp_path, 0)
    begun, answered, calls = threading.Event(), threading.Event(), [0]

    def exchange(self: SharedState, now: Mapping[str, PolicyState], tasks: object) -> Mapping[str, PolicyState]:
        calls[0] += 1
        begun.set()
        answered.wait(30)
        return now

    monkeypatch.setattr(SharedState, "exchange", exchange)
    monkeypatch.setattr(desk, "_PATIENCE", 0.0)
    thread = threading.Thread(target=pilot._desk.work)
    thread.start()
    begun.wait(30)
    pilot.close()
    answered.set()
    thread.join()
    assert calls == [1]
    assert "does not answer" in caplog.text


def test_what_failed_half_way_is_done_again_as_if_it_had_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often a folder of a network fails meanwhile, what others have learned does not become one's own."""
    one, two = engine(tmp_path), engine(tmp_path)
    two.exchange(states(50.0, 50.0), ())
    known = one.exchange(states(25.0, 5.0), ())
    faded = {"p": PolicyState("s", {"n": known["p"].arrays["n"] * 0.5})}
    for failing in ("_news", "_with_others"):
        with monkeypatch.context() as broken:
            broken.setattr(SharedState, failing, lambda *_: (_ for _ in ()).throw(OSError("stale handle")))
            for _ in range(3):
                with pytest.raises(OSError, match="stale handle"):
                    one.exchange(faded, ())
    one.exchange(faded, ())
    assert values(read_state(one.place / FILE).policies) == [12.5, 2.5]
    one.close()
    two.close()


def test_an_end_at_which_nothing_can_be_saved_ends_what_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pilot = learning(tmp_path, 0)

    def exchange(*_: object) -> None:
        raise OSError("stale handle")

    ended = []
    monkeypatch.setattr(SharedState, "exchange", exchange)
    monkeypatch.setattr(SharedState, "close", lambda _: ended.append("state"))
    pilot.close()
    assert ended == ["state"]
    assert "what was learned last is not saved" in caplog.text
