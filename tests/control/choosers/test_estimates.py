"""What is noted of rounds is learned under the right name, whoever has the row by then."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.control.choosers.estimates import Estimates, EstimateSettings
from adaptspec.types import Missed
from tests.control.helpers import record, table
from tests.fakes import array

SETTINGS = EstimateSettings((1, 2, 3), "draft-model")


def made(rows: int = 4, tasks: int = 2) -> Estimates:
    estimates = Estimates(table(), rows, tasks, SETTINGS)
    for row in range(rows):
        estimates.start(row, 1)
    return estimates


def test_tokens_that_were_missed_stay_with_the_task_of_the_request_they_were_of() -> None:
    """Learning waits, and another request may have come into the row by then: it has seen nothing yet."""
    estimates = made()
    known = estimates.observe_missed(array(2, 0, 1), Missed(array(9, 3, 12), array(0, 3, 12)))
    assert known == 2  # three tokens tell nothing
    estimates.start(2, 0)
    assert estimates.observe_missed(array(2), Missed(array(10), array(10))) == 1
    estimates.learn()
    rejections = estimates.acceptance.rejections(array(0, 1, 2, 3))
    assert rejections[2] == pytest.approx(0.0)  # the new request agreed with all of its ten
    assert rejections[[0, 1, 3]].tolist() == [0.0, 0.0, 0.0]
    tasks = estimates.acceptance.learned()[1:, 1].sum(axis=1)
    assert tasks[0] == pytest.approx(0.0)
    assert tasks[1] > 1.0


def test_rows_that_another_drafter_ran_were_not_judged() -> None:
    estimates = made()
    missed = Missed(array(9, 9), array(0, 0))
    assert estimates.observe_missed(array(0, 1), missed, np.array([False, True])) == 1
    estimates.learn()
    rejections = estimates.acceptance.rejections(array(0, 1))
    assert rejections[0] == 0.0
    assert rejections[1] > 1.0


def test_a_request_lasts_as_many_rounds_as_it_ran_in() -> None:
    """Not those in which it waited for its prompt to be read: what catching up may cost is spread over them."""
    estimates = made()
    for _ in range(30):
        estimates.start(3, 1)
        for _ in range(50):
            estimates.note(record([0, 0], [0, 0], rows=[0, 1]))
        for _ in range(2):
            estimates.note(record([0, 0, 0], [0, 0, 0], rows=[0, 1, 3]))
        estimates.finish(3)
    each = 100 * estimates.entry_of_task(1)
    assert each == pytest.approx(estimates.entry(array(3), array(100)).item())
    catching_up = table().catch_up_seconds("draft-model", 100.0)
    assert catching_up / each == pytest.approx(2.0, rel=0.1)
