"""Totals equal the sums over all rounds, whatever the rounds are and whenever they are read."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.telemetry.totals import FOLD, RoundLedger
from adaptspec.types import Reason, RoundRecord


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
        prefill_tokens=number,
        draft_steps=2,
        caught_up=1,
        verify_tokens=3,
        draft_seconds=0.25,
        verify_seconds=0.5,
        total_seconds=1.0,
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
@given(ROUNDS, st.integers(1, 12), st.sampled_from([1, FOLD]))
def test_totals_are_the_sums(rounds: list[Any], read_every: int, repeat: int) -> None:
    ledger = RoundLedger()
    for number, one in enumerate(rounds):
        for _ in range(repeat):
            ledger.note(record(one, number))
        if number % read_every == 0:
            ledger.read()
    totals, flat = ledger.read(), [row for one in rounds for row in one]
    kept = [min(accepted, emitted) for _, _, accepted, emitted, _ in flat]
    assert totals.rounds == repeat * len(rounds)
    assert totals.drafts == repeat * sum(row[1] > 0 for row in flat)
    assert totals.drafted_tokens == repeat * sum(row[1] for row in flat)
    assert totals.accepted_tokens == repeat * sum(kept) == totals.accepted_per_position.sum()
    assert totals.emitted == repeat * sum(row[3] for row in flat)
    for position, count in enumerate(totals.accepted_per_position):
        assert count == repeat * sum(one > position for one in kept)
    for depth, count in enumerate(totals.depths):
        assert count == repeat * sum(row[0] == depth for row in flat)
    for reason in Reason:
        assert totals.reasons[reason] == repeat * sum(row[4] == reason for row in flat)
    assert totals.prefill_tokens == repeat * sum(range(len(rounds)))
    assert totals.draft_steps == 2 * totals.rounds
    assert (totals.draft_seconds, totals.verify_seconds) == (totals.rounds / 4, totals.rounds / 2)


def test_a_reader_on_another_thread_loses_nothing() -> None:
    ledger, one = RoundLedger(), record([(3, 3, 2, 3, Reason.POLICY)])
    writer = threading.Thread(target=lambda: [ledger.note(one) for _ in range(5000)])
    writer.start()
    before = 0
    while writer.is_alive():
        totals = ledger.read()
        assert totals.rounds >= before
        assert totals.drafted_tokens == 3 * totals.rounds, "one reading is of one moment"
        before = totals.rounds
    writer.join()
    assert ledger.read().rounds == 5000
