"""Where decisions are reused as long as they may be, policies earn what they earn where each round is decided."""

from __future__ import annotations

from functools import partial
from itertools import count

import numpy as np
import pytest

from adaptspec.control.controller import Controller
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.loader import load_policy_spec
from adaptspec.simulation.simulator import replay
from tests.policies.cells import GREEDY, Cell, costs, stream_of

CELLS = [Cell("epyc-float32", GREEDY, "1"), Cell("epyc-q4_1", "code", "1")]


@pytest.mark.parametrize("cell", CELLS, ids=str)
@pytest.mark.parametrize("policy", ["goodput", "ucb"])
def test_reuse_costs_little(policy: str, cell: Cell) -> None:
    """By this timer every decision takes longer than eight rounds. Splits vary by some 2 %."""
    spec, ratios = load_policy_spec(find_policy(policy)), []
    for split in (0, 1):
        ticks = count()
        reusing = partial(Controller, timer=lambda ticks=ticks: float(next(ticks)))
        stream = stream_of(cell, split)
        anew = replay(spec, stream, costs(cell.table))
        reused = replay(spec, stream, costs(cell.table), controller=reusing)
        ratios.append(reused.goodput / anew.goodput)
    assert np.mean(ratios) > 0.97
