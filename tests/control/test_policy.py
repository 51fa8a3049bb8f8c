"""The signals a policy sees, and what rounds say of themselves."""

from __future__ import annotations

import numpy as np

from adaptspec.control.copies import changed
from tests.control.helpers import record, signals


def test_a_part_of_a_batch_knows_how_many_run_beside_it() -> None:
    part = signals([7, 5, 3], lag=[0, 1, 2], beside=2).take(np.array([0, 2]))
    assert part.limits.tolist() == [7, 3]
    assert part.lag[0].tolist() == [0, 2]
    assert (part.batch_size, part.beside, part.round_size) == (2, 3, 5)


def test_the_least_limit_is_that_of_any_row_and_of_no_other_batch() -> None:
    """Whoever has looked once: a part of the batch has a least of its own."""
    for limits in ([7], [7, 2, 5], [3, 3], [0, 9]):
        seen = signals(limits)
        assert seen.least_limit == seen.least_limit == min(limits)
        assert changed(seen, lag=seen.lag[:1]).least_limit == min(limits)
    whole = signals([7, 2, 5])
    assert (whole.least_limit, whole.take(np.array([0, 2])).least_limit) == (2, 5)


def test_a_round_drafted_if_anybody_did() -> None:
    for drafted, said in (([0], False), ([2], True), ([0, 0], False), ([0, 3, 0], True)):
        told = record(drafted, [0] * len(drafted))
        assert told.drafting is told.drafting is said
    mixed = record([0, 3], [0, 1])
    assert (mixed.drafting, mixed.take(np.array([0])).drafting) == (True, False)
