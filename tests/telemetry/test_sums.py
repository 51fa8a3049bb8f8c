"""Sums equal those over all rows, whatever the rounds are, however they are split and added."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.decision import Expected, Reason
from adaptspec.rounds import RoundRecord, Timing
from adaptspec.telemetry.sums import Forecast, RoundSums, RowTable
from tests.telemetry.rounds import ROUNDS, round_of
from tests.trees import Grown, branching, forests


def same(one: RoundSums, other: RoundSums) -> None:
    """Both sums are equal, up to rounding and to zeros at the end of arrays."""
    for each in fields(RoundSums):
        left, right = getattr(one, each.name), getattr(other, each.name)
        if isinstance(left, Forecast):
            assert vars(left) == pytest.approx(vars(right))
        elif isinstance(left, np.ndarray):
            shape = np.maximum(left.shape, right.shape)
            padded = [np.pad(part, [(0, more) for more in shape - part.shape]) for part in (left, right)]
            assert np.allclose(*padded), each.name
        else:
            assert left == pytest.approx(right), each.name


@settings(max_examples=60, deadline=None)
@given(ROUNDS, st.integers(1, 12))
def test_sums_are_those_of_all_rows(rounds: list[Any], together: int) -> None:
    records = [round_of(one, number) for number, one in enumerate(rounds)]
    sums, flat = RoundSums(), [row for one in rounds for row in one]
    for start in range(0, len(records), together):
        sums += RoundSums.of(records[start : start + together])
    accepted = [min(accepted, emitted) for _, _, accepted, emitted, _ in flat]
    assert (sums.rounds, sums.rows) == (len(rounds), len(flat))
    assert sums.drafts == sum(row[1] > 0 for row in flat)
    assert sums.drafted == sums.nodes == sum(row[1] for row in flat)
    assert sums.accepted == sum(accepted)
    assert sums.emitted == sum(row[3] for row in flat)
    assert (sums.seconds, sums.draft_seconds, sums.verify_seconds) == (len(rounds), len(rounds) / 4, len(rounds) / 2)
    assert sums.prefill_tokens == sum(range(len(rounds)))
    assert sums.draft_steps == 2 * len(rounds)
    for position in range(80):
        reached = sum(count > position for count in accepted)
        assert (sums.accepted_per_position[position] if position < len(sums.accepted_per_position) else 0) == reached
    assert sums.reasons.tolist() == [sum(row[4] == code for row in flat) for code in range(1 + max(Reason))]
    assert sums.off_reasons.sum() == sum(row[0] == 0 for row in flat)
    drafter = sums.drafter(0)
    assert (drafter.drafts, drafter.drafted, drafter.accepted) == (sums.drafts, sums.drafted, sums.accepted)
    assert (drafter.nodes, drafter.kept) == (sums.nodes, sums.accepted)


@settings(max_examples=60, deadline=None)
@given(st.lists(forests(), min_size=1, max_size=4), st.data())
def test_groups_of_rows_add_up_to_whole_rounds(records: list[RoundRecord], data: st.DataObject) -> None:
    """Each row has its share of time, work and nodes, branches and several drafters included."""
    table = RowTable(records)
    groups = data.draw(st.lists(st.integers(0, 2), min_size=len(table.round_index), max_size=len(table.round_index)))
    parts = table.by_row(np.array(groups, dtype=np.int64), 3)
    whole, total = RoundSums.of(records), sum(parts, RoundSums())
    assert total.rounds >= whole.rounds  # a round counts in every group that has a row of it
    same(replace(total, rounds=whole.rounds), whole)
    assert whole.nodes == sum(int(one.nodes.sum()) for one in records)
    assert sum(whole.drafter(index).nodes for index in range(len(whole.drafters))) == whole.nodes
    assert sum(whole.drafter(index).kept for index in range(len(whole.drafters))) == whole.accepted


def test_rows_of_no_group_are_left_out() -> None:
    table = RowTable([round_of([(3, 3, 2, 3, Reason.POLICY), (0, 0, 0, 1, Reason.OFF)])])
    (sums,) = table.by_row(np.array([-1, 0]), 1)
    assert (sums.rounds, sums.rows, sums.emitted, sums.drafted, sums.seconds) == (1, 1, 1, 0, 0.5)
    assert sums.off_reasons[Reason.OFF] == 1


def test_rounds_that_were_timed_as_a_whole_have_no_parts() -> None:
    """Inside another engine; a scraper meets no NaN."""
    rows = [(3, 3, 2, 3, Reason.POLICY)]
    sums = RoundSums.of([round_of(rows), replace(round_of(rows), timing=Timing(np.nan, np.nan, 1.0))])
    assert (sums.seconds, sums.draft_seconds, sums.verify_seconds) == (2.0, 0.25, 0.5)


def test_no_rounds_are_zero() -> None:
    same(RoundSums.of([]), RoundSums())


def test_tokens_of_a_tree_belong_to_the_drafter_that_proposed_them() -> None:
    record = branching(Grown([-1, 0, -1, 2], 2, [2], drafters=[0, 0, 1, 1]))
    sums = RoundSums.of([record])
    assert [sums.drafter(index)[3:] for index in range(3)] == [(2, 0), (2, 1), (0, 0)]
    assert (sums.drafter(0).drafts, sums.drafter(1).drafts) == (1, 0)


def test_forecasts_are_of_rounds_without_prompts() -> None:
    drafting = round_of([(3, 3, 2, 3, Reason.POLICY)])
    plain = round_of([(0, 0, 0, 1, Reason.OFF)])
    expected = [
        Expected(4.0, np.array([1.5]), 2.0),
        Expected(1.0, np.array([0.0])),
        Expected(9.0, np.array([1.0]), 3.0),
    ]
    prompt = round_of([(3, 3, 2, 3, Reason.POLICY)], number=7)
    records = [replace(one, expected=hope) for one, hope in zip((drafting, plain, prompt), expected, strict=True)]
    sums = RoundSums.of(records)
    assert sums.drafting == Forecast(expected=4.0, emitted=3.0, compared=4.0, rejected=2.0)
    assert sums.drafting.advantage == 2.0
    assert sums.plain_decoding == Forecast(expected=1.0, emitted=1.0)
    assert sums.plain_decoding.advantage is None
    assert (sums.expected_accepted, sums.accepted_as_expected) == (2.5, 4)


def test_entropy_is_of_drafted_tokens_that_say_it() -> None:
    one = replace(
        round_of([(3, 3, 2, 3, Reason.POLICY)] * 3), entropy=np.array([[0.5, 1.0], [0.25, np.nan], [np.nan] * 2])
    )
    sums = RoundSums.of([one])
    assert (sums.entropy_sum, sums.entropy_count) == (1.75, 3)
