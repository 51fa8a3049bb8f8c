"""Totals equal the sums over all rounds, whatever the rounds are and however many are added at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.decision import Reason
from adaptspec.rounds import DraftWork, RoundRecord, RoundWork, Timing
from adaptspec.telemetry.totals import Totals, by_proposer
from tests.trees import Grown, branching, forests


def record(rows: list[tuple[int, int, int, int, Reason]], number: int = 0) -> RoundRecord:
    """A round of rows (depth, drafted, accepted, emitted, reason)."""
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    empty = np.full((len(rows), 0), np.nan)
    zeros = np.zeros(len(rows), dtype=np.int64)
    ids = tuple(str(row) for row in range(len(rows)))
    columns: dict[str, Any] = {
        name: table[:, column] for column, name in enumerate(("depths", "drafted", "accepted", "emitted", "reasons"))
    }
    return RoundRecord(
        number=number,
        request_ids=ids,
        rows=zeros,
        drafter=zeros,
        context=zeros,
        confidence=empty,
        entropy=empty,
        work=RoundWork(len(rows), 3 - number, 0.0, (DraftWork("draft-model", 1, (1, 1), 1.0),), number),
        timing=Timing(0.25, 0.5, 1.0),
        **columns,
    )


@st.composite
def rows(draw: st.DrawFn) -> tuple[int, int, int, int, Reason]:
    depth = draw(st.integers(0, 80))
    drafted = draw(st.integers(0, depth))
    accepted = draw(st.integers(0, drafted))
    return depth, drafted, accepted, draw(st.integers(1, accepted + 1)), draw(st.sampled_from(Reason))


ROUNDS = st.lists(st.lists(rows(), max_size=5), max_size=12)


@settings(max_examples=60, deadline=None)
@given(ROUNDS, st.integers(1, 12))
def test_totals_are_the_sums(rounds: list[Any], together: int) -> None:
    records = [record(one, number) for number, one in enumerate(rounds)]
    totals, flat = Totals(), [row for one in rounds for row in one]
    for start in range(0, len(records), together):
        totals = totals.plus(records[start : start + together])
    kept = [min(accepted, emitted) for _, _, accepted, emitted, _ in flat]
    assert totals.rounds == len(rounds)
    assert totals.drafts == sum(row[1] > 0 for row in flat)
    assert totals.drafted_tokens == totals.nodes == sum(row[1] for row in flat)
    assert totals.accepted_tokens == sum(kept) == totals.accepted_per_position.sum()
    assert totals.emitted == sum(row[3] for row in flat)
    for position, count in enumerate(totals.accepted_per_position):
        assert count == sum(one > position for one in kept)
    for depth, count in enumerate(totals.depths):
        assert count == sum(row[0] == depth for row in flat)
    for reason in Reason:
        assert totals.reasons[reason] == sum(row[4] == reason for row in flat)
    assert totals.prefill_tokens == sum(range(len(rounds)))
    assert totals.draft_steps == 2 * totals.rounds
    assert (totals.draft_seconds, totals.verify_seconds) == (totals.rounds / 4, totals.rounds / 2)


FORESTS = st.lists(forests(), max_size=4)


@settings(max_examples=100, deadline=None)
@given(FORESTS)
def test_trees_are_counted_by_depth_and_by_node(records: list[RoundRecord]) -> None:
    """Acceptance is that of depths reached, whatever else was tried: accepted <= drafted <= nodes."""
    totals = Totals().plus(records)
    assert totals.nodes == sum(int(one.nodes.sum()) for one in records)
    assert totals.drafted_tokens == sum(int(one.drafted.sum()) for one in records)
    assert totals.accepted_tokens == totals.accepted_per_position.sum() <= totals.drafted_tokens <= totals.nodes
    assert len(totals.accepted_per_position) <= max((int(one.drafted.max()) for one in records), default=0)


@settings(max_examples=100, deadline=None)
@given(FORESTS)
def test_every_token_is_its_proposers(records: list[RoundRecord]) -> None:
    """In a union a row has tokens of several drafters: none is counted twice, and none is lost."""
    totals, (nodes, kept) = Totals().plus(records), by_proposer(records, 3)
    assert len(nodes) == len(kept) == 3
    assert (nodes.sum(), kept.sum()) == (totals.nodes, totals.accepted_tokens)
    assert (kept <= nodes).all()


def test_a_token_is_counted_for_who_proposed_it() -> None:
    """A draft model's chain, and beside it two tokens of another drafter, of which the first was right."""
    row = Grown([-1, 0, -1, 2], 2, [2], drafters=[0, 0, 1, 1])
    nodes, kept = by_proposer([branching(row)], 2)
    assert (nodes.tolist(), kept.tolist()) == ([2, 2], [0, 1])
