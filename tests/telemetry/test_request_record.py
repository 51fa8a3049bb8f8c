"""Records of requests: bounded lists of their rounds, sums beside them, and what is said of them."""

from __future__ import annotations

import json

from hypothesis import given, settings

from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.request_record import (
    RowRound,
    bars_of,
    rows_of,
)
from tests.trees import forests


@settings(max_examples=100, deadline=None)
@given(forests())
def test_bars_add_up_to_their_round(one: RoundRecord) -> None:
    """Accepted <= drafted <= nodes, and what is told by depth and by rank is told of every token once."""
    for i, (bar,) in enumerate(bars_of([one]).values()):
        assert bar.straight <= bar.accepted <= bar.drafted <= bar.nodes == one.nodes[i]
        assert bar.others <= bar.nodes
        assert json.loads(json.dumps(bar)) == list(bar)
        if bar.levels is not None:
            assert sum(bar.levels) == bar.nodes
            assert len(bar.levels) == bar.drafted
            assert all(bar.levels)
    for i, row in enumerate(map(RowRound._make, rows_of(one, 0.0))):
        assert (row.nodes, row.path is None) == (one.nodes[i], one.nodes[i] == one.chain[i])
        assert row.path is None or len(row.path) == row.accepted
