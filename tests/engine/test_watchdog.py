"""Only an engine that hangs is given up: one that was not let run is waited for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.watchdog import Watchdog, waited_for_processor
from tests.engine.conftest import Dictated, make_core
from tests.fakes import TableRunner

EVERY, PATIENCE = 0.25, 4.0


class Watched:
    """A front, its watchdog, and the time that both are told."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        policies = {"p": (Dictated((), lambda n, size: [0] * size), "coupled")}
        self.front = AsyncEngine(make_core(tokenizer, TableRunner(), [], policies))
        self.now = self.waited = 0.0
        self._dog = Watchdog(self.front, PATIENCE, clock=lambda: self.now, waited=lambda: self.waited)

    def work(self) -> None:
        """A sign of life."""
        self.front._beat = self.now

    def rest(self) -> None:
        """Nothing to do."""
        self.front._beat = None

    def until_given_up(self, *, starved: float = 0.0, every: float = EVERY, most: float = 200.0) -> float:
        """Seconds of silence until nobody waits for it, or `most`; for this share of them it was not let run."""
        began = self.now
        while self.front.alive and self.now < began + most:
            self.now += every
            self.waited += starved * every
            self._dog.look()
        return self.now - began


@pytest.fixture
def watched(tokenizer: PreTrainedTokenizerFast) -> Watched:
    return Watched(tokenizer)


def test_a_hang_is_noticed_in_time_and_an_end_of_it(watched: Watched) -> None:
    """Whether it waits for what never comes or computes for ever: it could have run."""
    watched.work()
    assert PATIENCE < watched.until_given_up() <= PATIENCE + 2 * EVERY
    watched.work()
    watched._dog.look()
    assert watched.front.alive


def test_an_engine_that_is_not_let_run_does_not_hang(watched: Watched) -> None:
    """Thirteen others on two processors: a round of some seconds takes many times as long."""
    watched.work()
    assert watched.until_given_up(starved=11 / 13, most=5 * PATIENCE) == 5 * PATIENCE
    watched.work()
    assert watched.front.alive


def test_a_hang_is_noticed_on_the_fullest_machine(watched: Watched) -> None:
    """Others of its threads may wait all the time, and more of them than one."""
    watched.work()
    assert watched.until_given_up(starved=7.0) <= 10 * PATIENCE + 2 * EVERY


def test_what_was_waited_before_the_silence_excuses_nothing(watched: Watched) -> None:
    for _ in range(100):
        watched.work()
        watched.until_given_up(starved=1.0, most=EVERY)
    assert watched.until_given_up() <= PATIENCE + 2 * EVERY


def test_an_engine_with_nothing_to_do_does_not_hang(watched: Watched) -> None:
    watched.rest()
    assert watched.until_given_up(most=100.0) == 100.0


def test_a_process_that_was_stopped_does_not_hang(watched: Watched) -> None:
    """For a minute nobody ran: neither the engine nor who looks at it."""
    watched.work()
    watched.until_given_up(most=2 * EVERY)
    assert watched.until_given_up(every=60.0, most=60.0) == 60.0
    assert watched.front.alive
    assert watched.until_given_up() <= PATIENCE + 2 * EVERY


def test_the_system_tells_who_was_not_let_run() -> None:
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


def test_a_system_that_does_not_tell_is_none_that_forgives(tmp_path: Path) -> None:
    """No such files, or files of another kind."""
    assert waited_for_processor(tmp_path / "none") == 0.0
    for name, text in (("1", ""), ("2", "a b c"), ("3", "5 2000000000 7")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "schedstat").write_text(text)
    assert waited_for_processor(tmp_path) == 2.0
