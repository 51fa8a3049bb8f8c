"""Records of requests: bounded lists of their rounds, sums beside them, and what is said of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from hypothesis import given, settings

from adaptspec.request import Request
from adaptspec.telemetry.request_record import (
    EVENTS_KEPT,
    ROUNDS_KEPT,
    RoundHistory,
    RowRound,
    bars_of,
    rows_of,
)
from adaptspec.telemetry.request_store import RequestStore
from adaptspec.types import (
    Reason,
    RoundRecord,
)
from tests.control.helpers import record
from tests.telemetry.feeding import made
from tests.trees import forests


def lived(*rounds: RoundRecord, names: tuple[str, ...] = ("a",)) -> list[RoundHistory]:
    """The histories of requests that ran these rounds."""
    store, _ = made(lambda store: setattr(store, "detailed", True), drafters=("draft-model", "ngram"))
    return _fed(store, rounds, names)


def _fed(store: RequestStore, rounds: tuple[RoundRecord, ...], names: tuple[str, ...]) -> list[RoundHistory]:
    for name in names:
        store.started(Request(name, (1,)))
    for one in rounds:
        store.emit(replace(one, request_ids=names))
    store.settle()
    histories = [store.running[name].history for name in names]
    for history in histories:
        history.close(store.drafters)
    return histories


def test_only_what_was_emitted_counts_as_accepted() -> None:
    """As in the answer: what lies behind the end earned nothing."""
    (history,) = lived(replace(record([5], [4]), emitted=np.array([2])))
    assert list(history.columns["accepted"]) == [2]


def test_lists_are_bounded() -> None:
    """A request that runs for ever takes no more room than one of so many rounds."""
    (history,) = lived(*(record([number % 2], [0]) for number in range(ROUNDS_KEPT + 5)))
    assert (len(history.kept), history.sums.rounds, history.truncated) == (ROUNDS_KEPT, ROUNDS_KEPT + 5, True)
    assert len(history.events) == EVENTS_KEPT
    assert history.events_dropped > 0
    assert history.sums.reasons[int(Reason.POLICY)] == ROUNDS_KEPT + 5


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
