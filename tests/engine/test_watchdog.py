"""Only an engine that makes no progress is given up: slow rounds, and a full machine, are waited for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adaptspec.engine.watchdog import MULTIPLE, REMEMBERED, Watchdog, waited_for_processor

EVERY, PATIENCE = 0.25, 4.0


class FakeEngine:
    """An engine whose progress a test dictates."""

    def __init__(self) -> None:
        self.heartbeat: int | None = None
        self.given_up: list[str] = []
        self.is_alive = True

    def stack(self) -> str:
        return "in the middle of a pass"

    def mark_hung(self, reason: str) -> None:
        self.given_up.append(reason)
        self.is_alive = False

    def resume(self) -> None:
        self.is_alive = True


class World:
    """An engine, its watchdog, and the time that both see."""

    def __init__(self, expected: float = 0.0) -> None:
        self.engine = FakeEngine()
        self.now = self.waited = 0.0
        self.watchdog = Watchdog(
            self.engine, PATIENCE, expected=expected, clock=lambda: self.now, waited=lambda: self.waited
        )

    def progress(self) -> None:
        """The engine reports progress, and the watchdog looks."""
        self.engine.heartbeat = (self.engine.heartbeat or 0) + 1
        self.watchdog.look()

    def idle(self) -> None:
        """The engine has nothing to do."""
        self.engine.heartbeat = None
        self.watchdog.look()

    def silence(self, most: float = 1000.0, *, starved: float = 0.0, every: float = EVERY) -> float:
        """Seconds until the engine is given up, `most` if it is not; for a share of them it had no processor."""
        began = self.now
        while self.engine.is_alive and self.now < began + most:
            self.now += every
            self.waited += starved * every
            self.watchdog.look()
        return self.now - began

    def work(self, seconds: float, gap: float = EVERY) -> None:
        """Work that reports progress after every `gap` seconds."""
        ends = self.now + seconds
        while self.now < ends:
            self.silence(gap)
            self.progress()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    world.progress()
    yield world
    assert all("no progress" in reason for reason in world.engine.given_up)


def test_a_long_round_that_reports_progress_is_no_hang(world: World) -> None:
    """A round of five minutes: deep drafts, trees, sixteen rows."""
    world.work(300.0, gap=1.0)
    assert not world.engine.given_up


def test_a_pass_that_never_returns_is_noticed_in_time_and_so_is_its_end(world: World) -> None:
    world.work(10.0)
    assert PATIENCE < world.silence() <= PATIENCE + 2 * EVERY
    world.silence(100.0)
    world.progress()
    assert world.engine.is_alive
    assert len(world.engine.given_up) == 1


def test_the_bound_grows_with_the_passes_that_were_measured(world: World) -> None:
    """Where a pass of three seconds is usual, one of twenty seconds is slow, and one that never returns is noticed."""
    world.work(3.0, gap=3.0)
    assert world.watchdog.bound == pytest.approx(MULTIPLE * 3.0, rel=0.1)
    world.silence(20.0)
    world.progress()
    assert not world.engine.given_up
    slowest = world.watchdog.bound
    assert slowest == pytest.approx(MULTIPLE * 20.0, rel=0.1)
    assert slowest < world.silence() <= slowest + 2 * EVERY


def test_the_bound_shrinks_when_passes_are_fast_again(world: World) -> None:
    """Only work counts: a server without requests learns nothing of its machine."""
    world.work(3.0, gap=3.0)
    world.idle()
    world.silence(2 * REMEMBERED)
    world.progress()
    assert world.watchdog.bound > 2 * PATIENCE
    world.work(REMEMBERED + 10.0)
    assert world.watchdog.bound == PATIENCE


def test_passes_that_are_expected_to_be_slow_are_waited_for() -> None:
    """By the costs that were measured at the start, before there was any pass."""
    world = World(expected=2.0)
    world.progress()
    assert 2.0 * MULTIPLE < world.silence() <= 2.0 * MULTIPLE + 2 * EVERY


def test_a_hang_that_ends_does_not_make_the_watchdog_blind(world: World) -> None:
    """An hour without progress is remembered as a silence of the length at which it was noticed, not of an hour."""
    world.silence()
    world.engine.is_alive = True
    world.silence(3600.0)
    world.progress()
    assert world.engine.is_alive
    assert world.silence() <= MULTIPLE * PATIENCE + 2 * EVERY


@pytest.mark.parametrize("expected", [0.0, 2.0])
def test_hangs_that_follow_on_each_other_are_noticed_as_soon_as_the_second(expected: float) -> None:
    """The bound grows after the first hang, which may have been a slow pass, and never again by a hang."""
    world = World(expected)
    world.progress()
    bounds = []
    for _ in range(4):
        bounds.append(world.watchdog.bound)
        assert bounds[-1] < world.silence() <= bounds[-1] + 2 * EVERY
        world.progress()
        world.work(10.0)
    assert bounds == [bounds[0]] + [MULTIPLE * bounds[0]] * 3


def test_an_engine_that_is_not_let_run_does_not_hang(world: World) -> None:
    """Thirteen others on two processors: a pass of some seconds takes many times as long."""
    assert world.silence(5 * PATIENCE, starved=11 / 13) == 5 * PATIENCE
    world.progress()
    assert world.engine.is_alive


def test_a_hang_is_noticed_on_the_fullest_machine(world: World) -> None:
    """Other threads of the process may wait all the time, and more of them than one."""
    assert world.silence(starved=7.0) <= 10 * PATIENCE + 2 * EVERY


def test_time_waited_before_a_silence_does_not_count(world: World) -> None:
    for _ in range(100):
        world.silence(EVERY, starved=1.0)
        world.progress()
    assert world.silence() <= PATIENCE + 2 * EVERY


def test_a_process_that_was_stopped_does_not_hang(world: World) -> None:
    """For a minute nothing ran: neither the engine nor the watchdog."""
    world.silence(2 * EVERY)
    assert world.silence(60.0, every=60.0) == 60.0
    assert world.engine.is_alive
    assert world.silence() <= PATIENCE + 2 * EVERY


def test_waiting_for_a_processor_is_read_from_the_system() -> None:
    """Two that compute on one processor; and a thread that sleeps waits for nothing."""
    one = min(os.sched_getaffinity(0))
    busy = subprocess.Popen(
        [sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{one}]); print(flush=True)\nwhile True: pass"],
        stdout=subprocess.PIPE,
    )
    grown: list[float] = []

    def compete() -> None:
        os.sched_setaffinity(0, [one])
        before, ends = waited_for_processor(), time.monotonic() + 0.5
        while time.monotonic() < ends:
            pass
        grown.append(waited_for_processor() - before)

    try:
        assert busy.stdout is not None
        busy.stdout.readline()
        thread = threading.Thread(target=compete)
        thread.start()
        thread.join()
    finally:
        busy.kill()
        busy.communicate()
    assert grown[0] > 0.05


def test_without_system_statistics_no_waiting_is_excused(tmp_path: Path) -> None:
    """No such files, or files of another kind."""
    assert waited_for_processor(tmp_path / "none") == 0.0
    for name, text in (("1", ""), ("2", "a b c"), ("3", "5 2000000000 7")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "schedstat").write_text(text)
    assert waited_for_processor(tmp_path) == 2.0
