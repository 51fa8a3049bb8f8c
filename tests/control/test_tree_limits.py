"""Where drafts branch: as far as a node earns what verifying it costs, at the price of the whole batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adaptspec.control.algorithms.algorithm import Choice, ExpectedValue
from adaptspec.control.algorithms.goodput import Goodput, GoodputSettings
from adaptspec.control.tree_limits import TreeLimits
from tests.control.helpers import signals, table

ROWS = 4


def value() -> ExpectedValue:
    """What goodput says of some rows with a model and a model-free drafter."""
    made = Goodput(table(), ROWS, 1, GoodputSettings(drafters=("draft-model", "counts"), max_width=8))
    known = made.value(signals([7] * ROWS))
    assert known is not None
    return known


def choice(known: ExpectedValue | None, *drafter: int) -> Choice:
    who = np.array(drafter or [0] * ROWS)
    return Choice(np.full(ROWS, 3), np.zeros(ROWS, dtype=np.int64), known, who)


def test_a_flat_place_in_what_was_learned_makes_no_token_free() -> None:
    """Neighbours that were learned apart are pooled; many nodes at the price of one would leave the place at once."""
    known = value()
    tokens = np.arange(len(known.verify), dtype=np.float64)
    expected = float(known.models[0].nodes[-1])
    shape = np.where(tokens < 1.5 * expected, np.minimum(tokens, 0.5 * expected), tokens - expected)
    flat, steep = (replace(known, verify=1e-4 * seconds, drafting={0: 1}) for seconds in (shape, tokens))
    floors = [float(TreeLimits(8, 64).table(choice(one)).floor[0]) for one in (flat, steep)]
    assert floors[0] > 0.1 * floors[1] > 0.0


def test_a_dearer_pass_lets_in_fewer_nodes() -> None:
    known = value()
    floors = [TreeLimits(8, 64).table(choice(replace(known, verify=by * known.verify))).floor for by in (1.0, 2.0)]
    np.testing.assert_allclose(floors[1], 2.0 * floors[0])
