"""The signals a policy sees, and what rounds say of themselves."""

from __future__ import annotations

import numpy as np

from tests.control.helpers import record, signals


def test_a_part_of_a_batch_knows_how_many_run_beside_it() -> None:
    part = signals([7, 5, 3], lag=[0, 1, 2], beside=2).take(np.array([0, 2]))
    assert part.limits.tolist() == [7, 3]
    assert part.lag[0].tolist() == [0, 2]
    assert (part.batch_size, part.beside, part.round_size) == (2, 3, 5)


def test_a_round_drafted_if_anybody_did() -> None:
    for drafted, said in (([0], False), ([2], True), ([0, 0], False), ([0, 3, 0], True)):
        told = record(drafted, [0] * len(drafted))
        assert told.drafting is told.drafting is said
    mixed = record([0, 3], [0, 1])
    assert (mixed.drafting, mixed.take(np.array([0])).drafting) == (True, False)
