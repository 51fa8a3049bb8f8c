"""Drafts that branch on tapes: who is right, what wrong nodes are shown as, what passes cost, how two unite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.decision_tables import StopTable, TreeTable
from adaptspec.models.draft import Draft
from adaptspec.simulation.cost_profiles import load_costs
from adaptspec.simulation.draft_view import UNRANKED, AfterMiss, DraftView, run_lengths
from adaptspec.simulation.tape_drafters import TapeModel
from adaptspec.simulation.tape_trees import RIGHT, TapeJob, chain_tokens, right_path, united_on_tape

COSTS = load_costs("gpu-8b")
TOP = (0.6, 0.2, 0.1)


def view_of(ranks: Sequence[int]) -> DraftView:
    rank = np.array(ranks)
    own = DraftView.of_agreement(rank == 0, np.full(len(rank), TOP[0]), np.full(len(rank), 0.5))
    return replace(own, rank=rank, top=np.tile(TOP, (len(rank), 1)))


def table_of(rows: int, width: int = 3, nodes: int = 64, floor: float = 0.0) -> TreeTable:
    """Chances are what the drafter states, at the middle of ten bins."""
    bins = np.broadcast_to((np.arange(10) + 0.5) / 10, (rows, 1, 10))
    return TreeTable(np.full(rows, width), np.full(rows, nodes), np.full(rows, floor), bins)


def beam_of(rows: int) -> StopTable:
    """Everything that is likelier than one in a hundred is drafted on from."""
    one = np.ones((rows, 1))
    return StopTable(survival=0.01 * one, calibration=0.9 * one, unstated=one, worth=one, step=0.0 * one)


def drafted(view: DraftView, depth: int, tree: TreeTable | None, stop: StopTable | None = None) -> tuple[Draft, float]:
    end = np.array([len(view.run) - 1])
    job = TapeJob(np.zeros(1, dtype=np.int64), np.array([depth]), np.array([9]), np.zeros(1, dtype=np.int64), end, end)
    return TapeModel("draft-model", view, COSTS, 1, 512).propose(replace(job, stop=stop, tree=tree))


ranked = st.lists(st.sampled_from([0, 0, 1, 2, UNRANKED]), min_size=2, max_size=10)


@given(ranked, st.integers(1, 6), st.integers(1, 3), st.integers(1, 20), st.booleans())
@settings(max_examples=80, deadline=None)
def test_a_tree_keeps_its_shape_and_never_loses_to_its_chain(
    ranks: list[int], depth: int, width: int, nodes: int, beam: bool
) -> None:
    """Parents first, equal tokens once, within ceilings; what is right is right all the way, at least the chain's."""
    view = view_of(ranks)
    draft, _ = drafted(view, depth, table_of(1, width, nodes), beam_of(1) if beam else None)
    accepted, path = right_path(draft)
    chain = min(depth, nodes) if width > 1 else depth
    assert draft.counts[0] <= max(nodes, int(draft.chain[0]))
    assert accepted[0] >= min(int(view.run[0]), int(draft.chain[0]))
    assert draft.chain[0] <= chain
    if draft.tree is not None:
        parents = draft.tree.parents[0, : draft.counts[0]].tolist()
        assert all(parent < place for place, parent in enumerate(parents))
        pairs = list(zip(parents, draft.tree.ranks[0, : draft.counts[0]].tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)
        before = [-1, *path[0, : accepted[0]].tolist()]
        assert [draft.tree.parents[0, place] for place in before[1:]] == before[:-1]
        assert draft.tree.ranks[0, before[1:]].tolist() == ranks[: accepted[0]]


def test_behind_a_wrong_token_siblings_share_what_the_first_leaves() -> None:
    """The recorded confidence of the first choice; the true text's candidates, scaled, for the others."""
    unknown = np.full((4, 2), np.nan)
    unknown[1] = 0.8, 0.4
    view = replace(view_of([0, UNRANKED, 0, 0]), after_miss=AfterMiss(unknown, unknown))
    draft, _ = drafted(view, 4, table_of(1))
    assert draft.tree is not None
    assert draft.confidence[0, :4].tolist() == pytest.approx([0.6, 0.6, 0.8, 0.4])
    beside = [draft.confidence[0, place] for place in range(4, 12) if draft.tree.parents[0, place] == 1]
    assert sorted(beside) == pytest.approx([0.05, 0.1])
    assert right_path(draft)[0].tolist() == [1]


def chain_of(run: int, count: int) -> Draft:
    empty = Draft.empty(1, count)
    return replace(empty, tokens=chain_tokens(np.array([run]), count), counts=np.array([count]))


@given(ranked, st.integers(0, 4), st.integers(0, 5), st.integers(0, 5))
@settings(max_examples=80, deadline=None)
def test_two_drafts_are_right_where_either_is(ranks: list[int], depth: int, run: int, more: int) -> None:
    """Right tokens are shared, wrong ones are not; each node is its drafter's."""
    one, two = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    draft = drafted(view_of(ranks), depth, table_of(1))[0] if depth else Draft.empty(1)
    free = chain_of(min(run, more), more)
    table = TreeTable(one + 9, one + 99, np.full(1, -1.0), np.ones((1, 1, 1)))
    both = united_on_tape(draft, free, table, (one, two))
    right, alone = right_path(both)[0][0], right_path(draft)[0][0]
    assert right == max(alone, min(run, more))
    assert both.counts[0] == draft.counts[0] + more - min(alone, run, more)
    if not more:
        return
    assert both.tree is not None
    owners = both.tree.drafters[0, : both.counts[0]]
    assert int((owners == 0).sum()) == draft.counts[0]
    assert both.chain[0] == (draft.chain[0] if depth else more)
    tokens = both.tokens[0, right_path(both)[1][0]]
    assert (tokens >= RIGHT).all()


def test_runs_of_the_next_request_are_no_part_of_a_tree() -> None:
    """What was recorded ends with the request: nothing behind it is right."""
    rank = np.zeros(3, dtype=np.int64)
    view = replace(view_of([0, 0, 0, 0, 0, 0]), run=np.tile(run_lengths(rank == 0), 2))
    job = TapeJob(*(np.array([value]) for value in (0, 5, 9, 1, 2, 2)), tree=table_of(1))
    draft, _ = TapeModel("draft-model", view, COSTS, 1, 512).propose(job)
    assert right_path(draft)[0].tolist() == [2]
