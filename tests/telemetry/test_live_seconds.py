"""Sums by second equal the sums over all rows, however rounds are cut into lots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.control.tasks import OTHER
from adaptspec.telemetry.live_seconds import TASK_COLUMNS, Second
from adaptspec.types import RoundRecord
from tests.telemetry.test_totals import ROUNDS, record


def drawn(rounds: list[Any], drafters: int) -> list[RoundRecord]:
    """Rounds with drafters and entropies; of request n the task is told for even n."""
    rng, made = np.random.default_rng(len(rounds)), []
    for number, rows in enumerate(rounds):
        one = record(rows, number)
        entropy = np.full((len(rows), int(one.drafted.max(initial=0))), np.nan)
        for i, count in enumerate(one.drafted.tolist()):
            entropy[i, :count] = rng.random(count)
        made.append(replace(one, entropy=entropy, drafter=rng.integers(0, drafters, len(rows))))
    return made


TASKS = {"0": "code", "2": "story", "4": None}


@settings(max_examples=60, deadline=None)
@given(ROUNDS.filter(bool), st.integers(1, 3), st.integers(1, 5))
def test_seconds_are_the_sums_of_their_rows(rounds: list[Any], drafters: int, lot: int) -> None:
    records = drawn(rounds, drafters)
    second = Second(7)
    for start in range(0, len(records), lot):
        second.add(records[start : start + lot], TASKS)
    rows = [
        (
            TASKS.get(name) or OTHER,
            int(one.drafted[i]),
            min(int(one.accepted[i]), int(one.emitted[i])),
            int(one.emitted[i]),
            float(np.nansum(one.entropy[i])),
            int(one.drafter[i]),
        )
        for one in records
        for i, name in enumerate(one.request_ids)
    ]
    assert (second.rounds, second.rows) == (len(records), len(rows))
    assert second.busy == pytest.approx(float(len(records)))
    assert (second.drafted, second.accepted) == (sum(row[1] for row in rows), sum(row[2] for row in rows))
    assert second.emitted == sum(row[3] for row in rows)
    assert int(second.depths.sum()) == int(second.reasons.sum()) == len(rows)
    without = [int(one.reasons[i]) for one in records for i in range(len(one.depths)) if one.depths[i] == 0]
    assert second.off.tolist() == np.bincount(without, minlength=len(second.off)).tolist()
    for which, (used, drafted, accepted) in enumerate(second.drafters.tolist()):
        own = [row for row in rows if row[5] == which and row[1]]
        assert (used, drafted, accepted) == (len(own), sum(row[1] for row in own), sum(row[2] for row in own))
    assert set(second.tasks) == {row[0] for row in rows}
    for task, sums in second.tasks.items():
        own = [row for row in rows if row[0] == task]
        told = dict(zip(TASK_COLUMNS, sums.tolist(), strict=True))
        assert told["rounds"] == len(own)
        assert told["drafting"] == sum(row[1] > 0 for row in own)
        assert told["accepted"] == sum(row[2] for row in own)
        assert told["emitted"] == sum(row[3] for row in own)
        assert told["entropy_sum"] == pytest.approx(sum(row[4] for row in own))
        assert told["entropy_count"] == sum(row[1] for row in own)
