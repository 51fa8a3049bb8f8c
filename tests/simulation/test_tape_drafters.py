"""Drafters on a tape follow the engine's: what they read, where drafts end, what stop rules see, what passes cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.decision import StopTable, TreeTable
from adaptspec.draft_tree import DraftTree
from adaptspec.drafting.drafter import Draft
from adaptspec.rounds import DraftWork
from adaptspec.simulation.machine import Machine, load_machine
from adaptspec.simulation.tape import UNRANKED, AfterMiss, DraftView, run_lengths
from adaptspec.simulation.tape_drafters import RIGHT, TapeJob, TapeLookup, TapeModel, chain_tokens
from adaptspec.simulation.tape_executor import merge_drafts, right_path

CPU, GPU = load_machine("cpu-2-cores"), load_machine("gpu-8b")
TOP = (0.6, 0.2, 0.1)


def _view(size: int = 40) -> DraftView:
    return DraftView.of_agreement(np.ones(size, dtype=np.bool_), np.linspace(0.9, 0.1, size), np.full(size, 0.5))


def _job(depths: Sequence[int], context: Sequence[int], at: Sequence[int], stop: StopTable | None = None) -> TapeJob:
    rows, last = len(depths), np.full(len(depths), 39)
    numbers = (np.array(values) for values in (range(rows), depths, context, at))
    return TapeJob(*numbers, end=last, last=last, decoding=rows, stop=stop)


def test_the_first_draft_reads_the_prompt_and_later_ones_what_was_missed() -> None:
    """One or two tokens are the usual share; a rejected token rolls the cache back, off rounds let it fall behind."""
    draft = TapeModel("draft-model", _view(), CPU, 1, 512)
    rows = np.array([0])
    assert draft.cache_gap(rows, np.array([101])) == [99]
    first, seconds = draft.propose(_job([3], [101], [1]))
    assert first.tree.counts.tolist() == [3]
    assert first.work == (DraftWork("draft-model", 1, (1, 1, 1), 99),)
    times = CPU.drafters["draft-model"]
    steps = 3 * CPU.step_seconds("draft-model", 1, 0.0)
    assert seconds == pytest.approx(times.start + steps + 99 * times.catch_up_per_token)
    draft.keep(rows, np.array([102]))  # one of three was kept
    assert draft.cache_gap(rows, np.array([110])) == [110 - 102 - 2]
    assert draft.propose(_job([2], [103], [3]))[0].work == (DraftWork("draft-model", 1, (1, 1)),)
    draft.keep(rows, np.array([105]))  # both were kept: the second has not been fed
    assert draft.cache_gap(rows, np.array([110])) == [110 - 104 - 2]


@pytest.mark.parametrize("floor", [0.0, 0.6])
def test_behind_a_wrong_token_it_is_as_sure_as_it_was_recorded(floor: float) -> None:
    """Up to its first wrong token by the true text; after it by what was recorded there, as far as that goes.

    A stop rule is shown the same, and the token that it looks at stays submitted.
    """
    agreed = np.array([1, 1, 0, 1, 1, 1, 1, 1], dtype=np.bool_)
    unknown = np.full((8, 2), np.nan)
    unknown[2] = 0.55, 0.66
    view = DraftView.of_agreement(agreed, np.linspace(0.9, 0.1, 8), np.full(8, 0.5))
    view = replace(view, after_miss=AfterMiss(unknown, unknown))
    sure = [*view.confidence[1:3], 0.55, 0.66, view.confidence[5]]
    stop = StopTable(confidence=np.full((1, 1), floor))
    job = replace(_job([5], [9], [1], stop), last=np.array([7]))
    made, _ = TapeModel("draft-model", view, CPU, 1, 512).propose(job)
    count = 3 if floor else 5
    assert made.tree.counts.tolist() == [count]
    assert made.tree.confidence.tolist() == pytest.approx(sure[:count])
    assert made.tree.entropy.tolist() == pytest.approx([0.5, 0.5, 0.55, 0.66, 0.5][:count])


def test_long_prompts_are_read_in_pieces_first_come_first_served() -> None:
    """A row that has not caught up drafts nothing; two tokens are always read; steps are paid for all the same."""
    draft = TapeModel("draft-model", _view(), CPU, 3, 100)
    one, _ = draft.propose(_job([2, 2, 2], [150, 80, 60], [1, 1, 1]))
    assert one.tree.counts.tolist() == [0, 0, 0]
    assert one.work == (DraftWork("draft-model", 3, (3,), 98),)
    assert draft.cache_gap(np.arange(3), np.array([150, 80, 60])) == [48, 76, 56]
    two, _ = draft.propose(_job([2, 0, 2], [151, 81, 61], [2, 2, 2]))
    assert two.tree.counts.tolist() == [2, 0, 0], "51 are left of the first; the last has 59 to go and 49 to read"
    assert two.work == (DraftWork("draft-model", 2, (2, 1), 49 + 47),)
    assert draft.propose(_job([0, 0, 2], [154, 82, 62], [5, 3, 3]))[0].tree.counts.tolist() == [0, 0, 2]


def test_lookups_end_where_nothing_is_found_and_ask_no_stop_rule() -> None:
    strict = StopTable(confidence=np.full((3, 1), 2.0), entropy=np.full((3, 1), -1.0))
    reach = np.array([0, 2, 9])
    unknown = np.full(3, np.nan)
    view = DraftView(np.array([0, 1, 1]), reach, np.array([UNRANKED, 0, 0]), unknown, unknown, unknown)
    ngram = TapeLookup("ngram", view, CPU.drafters["ngram"].per_row)
    made, seconds = ngram.propose(_job([3, 3, 3], [10, 11, 12], [0, 1, 2], strict))
    assert made.tree.counts.tolist() == [0, 2, 3]
    assert made.work == (DraftWork("ngram", 3),)
    assert seconds == pytest.approx(3e-5)
    assert ngram.cache_gap(np.arange(3), np.array([10, 11, 12])) == [0, 0, 0]


def view_of(ranks: Sequence[int]) -> DraftView:
    rank = np.array(ranks)
    view = DraftView.of_agreement(rank == 0, np.full(len(rank), TOP[0]), np.full(len(rank), 0.5))
    return replace(view, rank=rank, top=np.tile(TOP, (len(rank), 1)))


def table_of(rows: int, width: int = 3, nodes: int = 64, floor: float = 0.0) -> TreeTable:
    """Chances are what the drafter states, at the middle of ten bins."""
    bins = np.broadcast_to((np.arange(10) + 0.5) / 10, (rows, 1, 10))
    return TreeTable(np.full(rows, width), np.full(rows, nodes), np.full(rows, floor), bins)


def beam_of(rows: int) -> StopTable:
    """Everything that is likelier than one in a hundred is drafted on from."""
    one = np.ones((rows, 1))
    return StopTable(survival=0.01 * one, calibration=0.9 * one, unstated=one, worth=one, step=0.0 * one)


def drafted(
    view: DraftView, depth: int, tree: TreeTable | None, stop: StopTable | None = None, machine: Machine = CPU
) -> tuple[Draft, float]:
    end = np.array([len(view.run) - 1])
    numbers = (np.array([value]) for value in (0, depth, 9, 0))
    job = TapeJob(*numbers, end=end, last=end, decoding=1, stop=stop, tree=tree)
    return TapeModel("draft-model", view, machine, 1, 512).propose(job)


@pytest.mark.parametrize("together", [False, True])
def test_a_machine_that_drafts_whole_runs_all_planned_steps_for_all_rows(*, together: bool) -> None:
    """The first row stops after one token, the second goes to its depth, the third drafts nothing.

    Elsewhere the steps are those that rows take. The stop rule decides what is submitted in both cases.
    """
    machine = Machine(
        "tested",
        GPU.verify,
        {"draft-model": replace(GPU.drafters["draft-model"], start=1e-4, per_row=1e-5, together=together)},
    )
    stop = StopTable(confidence=np.array([[2.0], [0.0], [0.0]]))
    model = TapeModel("draft-model", _view(), machine, 3, 512)
    rows, context = np.arange(3), np.array([9, 9, 9])
    model.propose(_job([1, 1, 1], context.tolist(), [1, 1, 1]))
    model.keep(rows, context)
    made, seconds = model.propose(_job([5, 3, 0], [10, 10, 10], [2, 2, 2], stop))
    assert made.tree.counts.tolist() == [1, 3, 0]
    passes = [(3, 30), (3, 33), (3, 36), (3, 39), (3, 42)] if together else [(2, 20), (1, 11), (1, 12)]
    assert [work.passes for work in made.work] == [tuple(rows for rows, _ in passes)]
    steps = sum(machine.step_seconds("draft-model", *one) for one in passes)
    assert seconds == pytest.approx(1e-4 + 2e-5 + steps)


def test_a_machine_that_drafts_whole_grows_trees_from_main_chains_alone() -> None:
    """Side nodes would take passes that its graphs do not have; the steps are those of the chain."""
    view = view_of([0, 1, 0, 0])
    beam = drafted(view, 3, table_of(1), beam_of(1))[0]
    machine = Machine("tested", GPU.verify, GPU.drafters)
    comb, seconds = drafted(view, 3, table_of(1), beam_of(1), machine)
    assert right_path(beam.tree)[0].tolist() == [3], "a beam goes on after the second token's next candidate"
    assert right_path(comb.tree)[0].tolist() == [2]
    assert comb.work == (DraftWork("draft-model", 1, (1, 1, 1), 7),)
    times, steps = machine.drafters["draft-model"], [machine.step_seconds("draft-model", 1, 9.0 + i) for i in range(3)]
    assert seconds == pytest.approx(sum(steps) + 7 * times.catch_up_per_token)


ranked = st.lists(st.sampled_from([0, 0, 1, 2, UNRANKED]), min_size=2, max_size=10)


@given(ranked, st.integers(1, 6), st.integers(1, 3), st.integers(1, 20), st.booleans())
@settings(max_examples=80, deadline=None)
def test_a_tree_keeps_its_shape_and_never_loses_to_its_chain(
    ranks: list[int], depth: int, width: int, nodes: int, beam: bool
) -> None:
    """Parents first, equal tokens once, within ceilings; what is right is right all the way, at least the chain's."""
    view = view_of(ranks)
    draft, _ = drafted(view, depth, table_of(1, width, nodes), beam_of(1) if beam else None)
    accepted, path = right_path(draft.tree)
    chain = min(depth, nodes) if width > 1 else depth
    tree = draft.tree
    assert len(tree.token) <= max(nodes, int(tree.chain[0]))
    assert accepted[0] >= min(int(view.run[0]), int(tree.chain[0]))
    assert tree.chain[0] <= chain
    parents = tree.parent.tolist()
    assert all(parent < node for node, parent in enumerate(parents))
    pairs = list(zip(parents, tree.rank.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    before = [-1, *path[0, : accepted[0]].tolist()]
    assert [tree.parent[node] for node in before[1:]] == before[:-1]
    assert tree.rank[before[1:]].tolist() == ranks[: accepted[0]]


def test_behind_a_wrong_token_siblings_share_what_the_first_leaves() -> None:
    """The recorded confidence of the first choice; the true text's candidates, scaled, for the others."""
    unknown = np.full((4, 2), np.nan)
    unknown[1] = 0.8, 0.4
    view = replace(view_of([0, UNRANKED, 0, 0]), after_miss=AfterMiss(unknown, unknown))
    draft, _ = drafted(view, 4, table_of(1))
    assert draft.tree.confidence[:4].tolist() == pytest.approx([0.6, 0.6, 0.8, 0.4])
    siblings = [draft.tree.confidence[node] for node in range(4, 12) if draft.tree.parent[node] == 1]
    assert sorted(siblings) == pytest.approx([0.05, 0.1])
    assert right_path(draft.tree)[0].tolist() == [1]


def chain_of(run: int, count: int) -> Draft:
    return Draft(DraftTree.from_chains(chain_tokens(np.array([run]), count), np.array([count]), drafter=1))


@given(ranked, st.integers(0, 4), st.integers(0, 5), st.integers(0, 5))
@settings(max_examples=80, deadline=None)
def test_two_drafts_are_right_where_either_is(ranks: list[int], depth: int, run: int, more: int) -> None:
    """Right tokens are shared, wrong ones are not; each node is its drafter's."""
    one = np.zeros(1, dtype=np.int64)
    draft = drafted(view_of(ranks), depth, table_of(1))[0] if depth else Draft(DraftTree.empty(1))
    free = chain_of(min(run, more), more)
    table = TreeTable(one + 9, one + 99, np.full(1, -1.0), np.ones((1, 1, 1)))
    both = merge_drafts(draft, free, table)
    right, alone = right_path(both.tree)[0][0], right_path(draft.tree)[0][0]
    assert right == max(alone, min(run, more))
    assert len(both.tree.token) == len(draft.tree.token) + more - min(alone, run, more)
    if not more:
        return
    assert int((both.tree.drafter == 0).sum()) == len(draft.tree.token)
    assert both.tree.chain[0] == (draft.tree.chain[0] if depth else more)
    tokens = both.tree.token[right_path(both.tree)[1][0]]
    assert (tokens >= RIGHT).all()


def test_runs_of_the_next_request_are_no_part_of_a_tree() -> None:
    """A recording ends with its request: no node after that is right."""
    rank = np.zeros(3, dtype=np.int64)
    view = replace(view_of([0, 0, 0, 0, 0, 0]), run=np.tile(run_lengths(rank == 0), 2))
    last = np.array([2])
    job = TapeJob(*(np.array([value]) for value in (0, 5, 9, 1)), end=last, last=last, decoding=1, tree=table_of(1))
    draft, _ = TapeModel("draft-model", view, CPU, 1, 512).propose(job)
    assert right_path(draft.tree)[0].tolist() == [2]
