"""How many CPU threads compute: as many as were asked for, or the faster of one and all of them.

Threads wait for each other at every product. On a quiet machine two threads take two thirds of the time of one. On a
busy machine each of them is held up by the programs that it shares its core with, and one thread can be several times
as fast as two. Which case holds is measured: when a model is loaded, and again between requests.

The number of threads can change the last bits of logits (another order of sums), so it never changes while a request
runs: texts of one request come from one number of threads.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TypeVar

import numpy as np
import torch

from adaptspec.errors import ModelError
from adaptspec.models.runner import Packed, Runner

_log = logging.getLogger(__name__)
T = TypeVar("T")
# Turns of a comparison, each with one pass per number of threads: at least so many, and more until the seconds are
# spent.
_LEAST_TURNS, _MOST_TURNS, _SECONDS = 2, 9, 0.5
# Another number of threads must be so many times as fast to replace the present one. Medians of a comparison repeat
# within some percent, so that it does not go back and forth.
FASTER = 1.1
# Seconds between comparisons: where rounds took other times than expected since the last one, and in any case.
AFTER_DOUBTS, AFTER_ALL = 10.0, 300.0


class ComputeThreads:
    """The number of threads, and the comparisons by which it is chosen.

    Its methods are to be called on the thread on which the model runs.
    """

    def __init__(
        self,
        choices: Sequence[int],
        run_pass: Callable[[], None],
        *,
        set_threads: Callable[[int], None] = torch.set_num_threads,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`choices` are the numbers to choose from, the first is used until a comparison finds a better one; a single
        one is fixed. `run_pass` runs one small forward pass, and is only called while no request runs. `timer` gives
        seconds.
        """
        self.choices = tuple(dict.fromkeys(choices))
        self.count = self.choices[0]
        self._run_pass, self._set_threads, self._timer = run_pass, set_threads, timer
        self._doubts: Callable[[], int] = lambda: 0
        self._on_change: Callable[[], None] = lambda: None
        self._known_doubts: int | None = None  # at the last comparison; None: nothing is followed
        self._compared = timer()
        self._under_way: Iterator[None] | None = None

    def __str__(self) -> str:
        most = max(self.choices)
        return str(self.count) if len(self.choices) == 1 else f"{self.count} of {most} (chosen by measurement)"

    def apply(self) -> None:
        """Use the number of threads on the calling thread: OpenMP keeps it for each thread that starts products."""
        self._set_threads(self.count)

    def compare(self) -> None:
        """Run a whole comparison now, and keep the faster choice."""
        for _ in self._comparison():
            pass

    def measure_each(self, measure: Callable[[], T]) -> list[T]:
        """The results of `measure` with each number of threads. Restores the current number afterwards."""
        try:
            found = []
            for count in self.choices:
                self._set_threads(count)
                found.append(measure())
            return found
        finally:
            self.apply()

    def follow(
        self, doubts: Callable[[], int], on_change: Callable[[], None], run_pass: Callable[[], None] | None = None
    ) -> None:
        """Have `work` compare again once `doubts`, which counts how often rounds contradicted their expected times, has
        risen, or from time to time. `on_change` is called when the number of threads has changed. `run_pass` is the
        pass from now on, if given.
        """
        self._doubts, self._on_change, self._known_doubts = doubts, on_change, doubts()
        self._run_pass = run_pass or self._run_pass

    def work(self) -> bool:
        """Run one pass of a comparison, if one is due; False: there is nothing to do for now.

        To be called again and again while no request runs.
        """
        if self._under_way is None:
            if not self._due():
                return False
            self._under_way = self._comparison()
        try:
            next(self._under_way)
        except StopIteration:
            self._under_way = None
        except Exception:  # noqa: BLE001 - requests are served without a comparison, too
            _log.exception("numbers of threads could not be compared; %d are used from here on", self.count)
            self._under_way, self.choices = None, (self.count,)
            self.apply()
        return self._under_way is not None

    def _due(self) -> bool:
        if len(self.choices) == 1 or self._known_doubts is None:
            return False
        passed = self._timer() - self._compared
        return passed >= (AFTER_ALL if self._doubts() == self._known_doubts else AFTER_DOUBTS)

    def _comparison(self) -> Iterator[None]:
        """Passes with each number of threads in turn, after one of each to warm up; then the choice."""
        if len(self.choices) == 1:
            return
        for count in self.choices:
            self._timed(count)
            yield
        seconds: dict[int, list[float]] = {count: [] for count in self.choices}
        turns, spent = 0, 0.0
        while turns < _LEAST_TURNS or (turns < _MOST_TURNS and spent < _SECONDS):
            turns += 1
            for count in self.choices:
                took = self._timed(count)
                seconds[count].append(took)
                spent += took
                yield
        self._compared = self._timer()
        self._choose({count: statistics.median(times) for count, times in seconds.items()})

    def _timed(self, count: int) -> float:
        """Seconds of a pass with this number of threads; afterwards the present number is set again."""
        self._set_threads(count)
        try:
            began = self._timer()
            self._run_pass()
            return self._timer() - began
        finally:
            self._set_threads(self.count)

    def _choose(self, seconds: Mapping[int, float]) -> None:
        best, before = min(seconds, key=seconds.__getitem__), self.count
        if seconds[best] * FASTER < seconds[before]:
            ratio = seconds[before] / max(seconds[best], 1e-9)
            _log.warning(
                "CPU threads per pass: now %d, which is %.1f x as fast as %d on this machine", best, ratio, before
            )
            self.count = best
            self.apply()
            self._on_change()
        if self._known_doubts is not None:
            self._known_doubts = self._doubts()  # with those that the change itself has raised


def one_token_pass(target: Runner, row: int = 0) -> None:
    """Run the target over one token of a row that is free, and free the row afterwards.

    Raises ModelError: the cache has no room for it.
    """
    if not target.reserve(row, 1):
        raise ModelError("the cache has no room for one token; give it more memory")
    one, token = np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    try:
        target.forward(Packed(np.array([row], dtype=np.int64), one, token, one))
    finally:
        target.free(row)


@cache
def all_threads() -> int:
    """The number of threads that torch uses by itself, or by OMP_NUM_THREADS.

    It is read at the first call: from then on models that are loaded may change what torch reports.
    """
    return torch.get_num_threads()
