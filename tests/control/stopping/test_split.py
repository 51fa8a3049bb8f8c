"""Several stops in one round: each is asked about its own rows, and only those."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.choosers.chooser import Choice
from adaptspec.control.stopping.split import RowThresholds, SplitStop, StopPart, TaskStops
from adaptspec.control.stopping.stop import NoStop
from adaptspec.control.stopping.thresholds import ConfidenceStop
from tests.control.stopping.asking import ask

NAN = float("nan")


def test_split_asks_each_part_about_its_own_rows() -> None:
    strict, loose = ConfidenceStop(0.9), ConfidenceStop(0.1)
    split = SplitStop(
        [StopPart(np.array([0, 2]), strict), StopPart(np.array([1]), loose), StopPart(np.array([3]), None)], 4
    )
    assert ask(split, [0.5, 0.5, 0.95, 0.0]) == [False, True, True, True]
    some = split(2, np.array([1, 2]), np.array([0.05, 0.5]), np.zeros(2))
    assert some.tolist() == [False, False]


def test_tasks_have_stops_of_their_own() -> None:
    """Beside the policy's rule, or the stop that a chooser brings; alone in a batch, too."""
    stops, loose = TaskStops({1: ConfidenceStop(0.9)}, 3), ConfidenceStop(0.3)
    for row, task in enumerate((1, 0, 2)):
        stops.start(row, task)
    choice = Choice(np.ones(3, dtype=np.int64), np.zeros(3, dtype=np.int64))
    both = stops.begin(choice, loose, np.arange(3))
    assert both is not None
    assert ask(both, [0.5, 0.5, 0.2]) == [False, True, False]
    assert stops.begin(choice, NoStop(), np.array([1, 2])) is None
    own, brought = (stops.begin(replace(choice, stop=loose), NoStop(), np.array([row])) for row in (0, 1))
    assert isinstance(own, ConfidenceStop)
    assert own is not loose
    assert brought is loose


def test_a_request_brings_its_own_threshold() -> None:
    """Rows 0 and 3 have one; the others keep the policy's stop, or draft on where it has none."""
    thresholds = np.array([0.2, NAN, NAN, 0.9])
    assert ask(RowThresholds(ConfidenceStop(0.5), thresholds), [0.3, 0.3, 0.6, 0.6]) == [True, False, True, False]
    assert ask(RowThresholds(None, thresholds), [0.1, 0.1, 0.1, NAN]) == [False, True, True, True]


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.one_of(st.none(), st.floats(0.0, 1.0))), min_size=1, max_size=6))
def test_rows_are_judged_alike_however_the_batch_shrinks(rows: list[tuple[float, float | None]]) -> None:
    """Positions are those of the batch, though only rows that still draft are asked about."""
    thresholds = np.array([NAN if own is None else own for _, own in rows])
    stop = RowThresholds(ConfidenceStop(0.5), thresholds)
    whole = ask(stop, [sure for sure, _ in rows])
    for i, (sure, own) in enumerate(rows):
        assert whole[i] == (sure >= (0.5 if own is None else own))
        assert stop(2, np.array([i]), np.array([sure]), np.zeros(1)).tolist() == [whole[i]]
