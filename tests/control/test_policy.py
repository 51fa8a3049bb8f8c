"""The signals a policy sees."""

from __future__ import annotations

import numpy as np

from tests.control.helpers import signals


def test_a_part_of_a_batch_knows_how_many_run_beside_it() -> None:
    part = signals([7, 5, 3], lag=[0, 1, 2], beside=2).take(np.array([0, 2]))
    assert part.limits.tolist() == [7, 3]
    assert part.lag[0].tolist() == [0, 2]
    assert (part.batch_size, part.beside, part.round_size) == (2, 3, 5)
