"""Records of requests: bounded lists of their rounds, sums beside them, and what is said of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from adaptspec.request import Request
from adaptspec.telemetry.request_record import (
    EVENTS_KEPT,
    ROUNDS_KEPT,
    RequestRecord,
    RoundHistory,
    RowRound,
    bars_of,
    rows_of,
)
from adaptspec.telemetry.request_store import RequestStore
from adaptspec.types import (
    Completion,
    Expected,
    FinishReason,
    Provenance,
    Reason,
    RoundRecord,
    SpeculationStats,
    Timings,
)
from tests.control.helpers import record
from tests.telemetry.feeding import made
from tests.telemetry.test_totals import record as rounds_record
from tests.trees import CHAIN, Grown, branching, forests


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


def test_what_was_expected_is_summed_beside_what_came() -> None:
    """Over the rounds that said something."""
    one = record([2, 2], [1, 2])
    told = replace(one, expected=Expected(1000.0, np.array([1.5, np.nan]), 800.0))
    first, second = lived(one, told, names=("a", "b"))
    assert first.sums.drafting.tokens == pytest.approx(1000.0 * one.total_seconds)
    assert first.sums.drafting.other_tokens == pytest.approx(800.0 * one.total_seconds)
    assert first.sums.drafting.seconds == first.sums.drafting.compared == pytest.approx(one.total_seconds)
    assert (first.sums.drafting.came, first.sums.expected, second.sums.expected) == (5, 1.5, 0.0)
    assert first.sums.plain.seconds == 0.0


def test_chances_are_kept_where_a_policy_explores() -> None:
    told = Provenance(np.array([3]), np.array([0.25]), np.array([0]), np.array([np.nan]))
    (history,) = lived(replace(record([2], [1]), provenance=told))
    assert (list(history.columns["arm"]), list(history.columns["propensity"])) == ([3], [0.25])


def test_lists_are_bounded() -> None:
    """A request that runs for ever takes no more room than one of so many rounds."""
    (history,) = lived(*(record([number % 2], [0]) for number in range(ROUNDS_KEPT + 5)))
    assert (len(history.kept), history.sums.rounds, history.truncated) == (ROUNDS_KEPT, ROUNDS_KEPT + 5, True)
    assert len(history.events) == EVENTS_KEPT
    assert history.events_dropped > 0
    assert history.sums.reasons[int(Reason.POLICY)] == ROUNDS_KEPT + 5


def two_rows() -> RoundRecord:
    one = rounds_record([(4, 3, 3, 2, Reason.EXPLORE), (0, 0, 0, 1, Reason.OFF)])
    entropy = np.array([[0.5, 1.5, np.nan], [np.nan] * 3])
    return replace(one, request_ids=("a", "b"), entropy=entropy, drafter=np.array([1, 0]))


def test_a_bar_is_one_round_of_one_request() -> None:
    """Tokens behind the end are not accepted; entropy is a mean over what was drafted, or unknown."""
    bars = bars_of([two_rows(), two_rows()])
    assert bars["a"][0]._asdict() == {
        "depth": 4,
        "drafted": 3,
        "accepted": 2,
        "emitted": 2,
        "drafter": 1,
        "reason": int(Reason.EXPLORE),
        "entropy": 1.0,
        "nodes": 3,
        "straight": 2,
        "others": 0,
        "levels": None,
    }
    assert bars["b"] == [(0, 0, 0, 1, 0, int(Reason.OFF), None, 0, 0, 0, None)] * 2


def test_a_bar_of_a_tree_says_how_wide_it_was_and_where_the_path_left_the_chain() -> None:
    row = Grown([-1, 0, 1, 0, 3, 3], 3, [0, 3, 5], drafters=[0, 0, 0, 1, 1, 0])
    one = replace(branching(row, CHAIN, drafter=[0, 1]), request_ids=("a", "b"))
    (wide,), (chain,) = (bars_of([one])[name] for name in "ab")
    assert (wide.drafted, wide.accepted, wide.nodes, wide.straight, wide.others) == (3, 3, 6, 1, 2)
    assert wide.levels == [1, 2, 3]
    assert (chain.nodes, chain.straight, chain.others, chain.levels) == (2, 1, 0, None)


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


def test_what_ended_is_told_in_seconds_since_1970() -> None:
    waited = Completion(
        "a", "", (), 2, FinishReason.ABORT, SpeculationStats("p"), Timings(5.0, None, None, 6.5), "shut down"
    )
    told = RequestRecord(Request("a", (1, 2)), 0, 5.5, completion=waited).ended(clock=1000.0)
    assert (told["arrived"], told["admitted"], told["finished"]) == (1005.0, None, 1006.5)
    assert (told["prompt_tokens"], told["finish"], told["policy"]) == (2, "abort", "p")
