"""The work of a recorded round: each drafter's passes, its rows in them, and what the target verified."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from adaptspec.control.round_work import DraftWork, RoundWork, Timing, batch_bucket, draft_passes, timing_of, work_of
from adaptspec.rounds import RoundRecord
from tests.control.helpers import record
from tests.trees import CHAIN, Grown, branching, forests

DRAFTERS = ("draft-model", "ngram")


def test_rows_leave_a_draft_one_after_another() -> None:
    work = work_of(record([3, 1], [1, 0]), DRAFTERS)
    assert work == RoundWork(2, 6, 200.0, (DraftWork("draft-model", 2, (2, 1, 1)),))


def test_whole_drafts_run_every_pass_over_all_rows() -> None:
    """Also over the row that does not draft."""
    work = work_of(record([3, 1, 0], [1, 0, 0]), DRAFTERS, {"draft-model"})
    assert work.drafts == (DraftWork("draft-model", 2, (3, 3, 3)),)


def test_prompts_are_no_verified_tokens() -> None:
    work = work_of(record([2], [1], prefill=100), DRAFTERS)
    assert (work.verify_tokens, work.prefill_tokens) == (3, 100)


def test_plain_rounds_have_no_drafts() -> None:
    assert work_of(record([0, 0], [0, 0]), DRAFTERS).drafts == ()


def test_a_row_that_only_caught_up_is_in_the_first_pass() -> None:
    read = replace(record([0], [0], depths=[2]), caught_up=300)
    assert work_of(read, DRAFTERS).drafts == (DraftWork("draft-model", 1, (1,), 300),)
    extra = replace(record([2, 0], [0, 0], depths=[2, 2]), caught_up=300)
    assert work_of(extra, DRAFTERS).drafts == (DraftWork("draft-model", 2, (2, 1), 300),)


def test_rows_of_two_drafters_are_counted_apart() -> None:
    work = work_of(record([2, 3, 1], [0, 0, 0], drafter=[0, 1, 0]), DRAFTERS)
    assert [(one.drafter, one.rows, one.passes) for one in work.drafts] == [
        ("draft-model", 2, (2, 1)),
        ("ngram", 1, ()),
    ]


def test_drafters_share_the_sums_of_a_round() -> None:
    """A record has one sum of caught-up tokens and one of draft passes. Lookups read and run nothing."""
    names = ("draft-model", "ngram", "other-model")
    caught_up = replace(record([3, 2, 1, 1], [0] * 4, drafter=[0, 1, 2, 0]), caught_up=300, draft_steps=4)
    stopping = {work.drafter: work for work in work_of(caught_up, names).drafts}
    assert {name: work.catch_up_tokens for name, work in stopping.items()} == {
        "draft-model": 200.0,
        "ngram": 0.0,
        "other-model": 100.0,
    }
    whole = work_of(caught_up, names, {"draft-model", "other-model"}).drafts
    assert {work.drafter: work.passes for work in whole} == {
        "draft-model": (4, 4, 4),
        "ngram": (),
        "other-model": (4,),
    }


def test_a_drafter_without_a_name_is_still_counted() -> None:
    """A record of a model pair that is no longer loaded."""
    assert [one.drafter for one in work_of(record([1], [0], drafter=[1]), ("draft-model",)).drafts] == [""]


def test_timing_is_that_of_the_record() -> None:
    one = record([2], [1])
    assert timing_of(one) == Timing(one.draft_seconds, one.verify_seconds, one.total_seconds)


@settings(max_examples=100, deadline=None)
@given(forests())
def test_a_drafter_pays_for_the_nodes_that_it_extended(one: RoundRecord) -> None:
    """Siblings come from one pass; each part of a tree is paid once, by the drafter that proposed it."""
    passes = {drafter_id: (rows, active) for drafter_id, rows, active in draft_passes(one)}
    assert one.branches is not None
    for drafter_id in range(2):
        rows, active = passes.get(drafter_id, (0, np.zeros(1, dtype=np.int64)))
        proposed = one.branches.tree.drafters == drafter_id
        nodes = int((proposed & (np.arange(proposed.shape[1]) < one.nodes[:, None])).sum())
        assert active[0] == rows <= len(one.rows)
        assert active[1:].sum() <= nodes


def test_side_nodes_cost_no_further_pass() -> None:
    """A sibling takes no pass of the draft model, only tokens of the target's pass."""
    siblings = Grown([-1, 0, 1, -1, 0, 1], 3)
    passes = [
        [(drafter_id, rows, active.tolist()) for drafter_id, rows, active in draft_passes(one)]
        for one in (record([3, 2], [1, 0]), branching(siblings, CHAIN), branching(Grown([-1, 0, 1], 3), CHAIN))
    ]
    assert passes == [[(0, 2, [2, 2, 1])]] * 3


def test_nodes_that_are_extended_side_by_side_are_rows_of_one_pass() -> None:
    beam = branching(Grown([-1, 0, -1, 2, 2], 2))
    assert [(drafter_id, rows, active.tolist()) for drafter_id, rows, active in draft_passes(beam)] == [(0, 1, [1, 2])]


def test_a_union_is_paid_by_both_drafters() -> None:
    union = branching(Grown([-1, 0, -1, 2], 2, drafters=[0, 0, 1, 1]))
    assert [drafter_id for drafter_id, _, _ in draft_passes(union)] == [0, 1]
    assert [one.drafter for one in work_of(union, DRAFTERS).drafts] == ["draft-model", "ngram"]


@pytest.mark.parametrize(("rows", "bucket"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (16, 4)])
def test_batch_sizes_that_are_alike_share_a_bucket(rows: int, bucket: int) -> None:
    assert batch_bucket(rows) == bucket
