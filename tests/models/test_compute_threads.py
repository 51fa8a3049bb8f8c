"""The number of threads: chosen by counted passes under an injected clock, with hysteresis, between requests only."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from adaptspec.models.compute_threads import AFTER_ALL, AFTER_DOUBTS, FASTER, ComputeThreads


class Machine:
    """Passes take the seconds that the machine needs with the number of threads that is set."""

    def __init__(self, seconds: Mapping[int, float]) -> None:
        self.seconds = dict(seconds)
        self.now, self.set, self.passes, self.doubts, self.changes = 0.0, 0, 0, 0, 0

    def run_pass(self) -> None:
        self.passes += 1
        self.now += self.seconds[self.set]

    def threads(self, *choices: int) -> ComputeThreads:
        def use(count: int) -> None:
            self.set = count

        made = ComputeThreads(choices, self.run_pass, set_threads=use, timer=lambda: self.now)
        made.apply()
        return made

    def followed(self, *choices: int) -> ComputeThreads:
        threads = self.threads(*choices)
        threads.follow(lambda: self.doubts, self.changed)
        return threads

    def changed(self) -> None:
        """The costs are doubted by the change itself, as an engine's are."""
        self.changes += 1
        self.doubts += 1

    def idle(self, threads: ComputeThreads) -> int:
        """Use spare time until there is nothing to do; the passes that it took."""
        before = self.passes
        while threads.work():
            assert self.set == threads.count, "a request that comes now is served as before"
        return self.passes - before


@pytest.mark.parametrize(
    ("one", "two", "chosen"),
    [
        (0.05, 0.03, 2),
        (0.05, 0.05, 2),
        (0.05, 0.05 * FASTER * 0.99, 2),
        (0.05, 0.05 * FASTER * 1.01, 1),
        (0.05, 0.9, 1),
    ],
)
def test_the_faster_number_is_kept_where_it_is_clearly_faster(one: float, two: float, chosen: int) -> None:
    machine = Machine({1: one, 2: two})
    threads = machine.threads(2, 1)
    threads.compare()
    assert (threads.count, machine.set) == (chosen, chosen)


def test_a_measurement_with_each_number_of_threads_leaves_the_number_as_it_was() -> None:
    machine = Machine({1: 0.05, 2: 0.03})
    threads = machine.threads(2, 1)
    assert threads.measure_each(lambda: machine.set) == [2, 1]
    assert machine.set == 2
    with pytest.raises(ZeroDivisionError):
        threads.measure_each(lambda: 1 // (machine.set - 1))
    assert machine.set == 2


@pytest.mark.parametrize(("seconds", "passes"), [(3.0, 6), (0.1, 8), (0.001, 20)])
def test_a_comparison_is_bounded(seconds: float, passes: int) -> None:
    """One turn to warm up and two that count; more only within half a second, and nine at most."""
    machine = Machine({1: seconds, 2: seconds})
    machine.threads(2, 1).compare()
    assert machine.passes == passes


def test_doubts_lead_to_a_comparison_and_a_change_is_reported_once() -> None:
    """A machine becomes busy, and quiet again. Each call runs one pass, so that a request waits for no more."""
    machine = Machine({1: 0.05, 2: 0.03})
    threads = machine.followed(2, 1)
    machine.now = AFTER_DOUBTS + 1
    assert machine.idle(threads) == 0, "rounds take what was expected"
    machine.seconds, machine.doubts = {1: 0.06, 2: 0.4}, 1
    assert machine.idle(threads) > 0
    assert (threads.count, machine.changes) == (1, 1)
    machine.now += AFTER_DOUBTS + 1
    assert machine.idle(threads) == 0, "the doubts that the change raised are no reason for another comparison"
    machine.doubts += 1
    machine.now -= AFTER_DOUBTS
    assert machine.idle(threads) == 0, "not again at once"
    machine.seconds = {1: 0.05, 2: 0.03}
    machine.now += AFTER_DOUBTS
    machine.idle(threads)
    assert (threads.count, machine.set, machine.changes) == (2, 2, 2)


def test_a_pass_that_fails_ends_comparisons_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine({2: 0.03})
    threads = machine.followed(2, 1)
    machine.now = AFTER_ALL
    assert machine.idle(threads) == 2
    machine.now += 2 * AFTER_ALL
    assert machine.idle(threads) == 0
    assert (threads.count, machine.set) == (2, 2)
    assert "could not be compared" in caplog.text
