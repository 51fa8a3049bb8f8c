"""Draft trees: which candidates are submitted, from which nodes drafting goes on, and how two drafts merge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.arrays import FloatArray
from adaptspec.decision import StopTable, TreeTable
from adaptspec.draft_tree import DraftTree
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import DraftJob
from adaptspec.drafting.tree_builder import Candidates, Node, TreeBuilder, TreeGrowth, merge_drafts
from adaptspec.models.runner import Forward, Packed
from adaptspec.models.sampling import RowSampling, SamplingBatch, leading
from adaptspec.request import SamplingParams
from tests import draft_trees
from tests.draft_trees import Row, draft_rows, pack
from tests.engine.branching import Shape
from tests.fakes import TableRunner, array

RANKS, BINS = 3, 10  # of calibrations


def _calibrated(table: TreeTable, row: int, rank: int, confidence: float) -> float:
    """P(a candidate is accepted after its parent), from the definition."""
    if not confidence > 0.0:
        return 0.0
    return float(table.calibration[row, min(rank, RANKS - 1), min(int(confidence * BINS), BINS - 1)])


@st.composite
def _tables(draw: st.DrawFn, rows: int, max_nodes: int = 12) -> TreeTable:
    """Any table for rows that branch."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return TreeTable(
        random.integers(1, 4, rows),
        random.integers(0, max_nodes + 1, rows),
        random.random(rows) * draw(st.sampled_from([0.0, 0.05, 0.5])),
        random.random((rows, RANKS, BINS)),
    )


class _Source:
    """Proposes random candidates after each node: the same after the same tokens of a row."""

    lag = 0

    def __init__(self, builder: TreeBuilder, seed: int, *, beams: bool = False, full: Sequence[int] = ()) -> None:
        """Rows in `full` have no room for nodes off their main chain."""
        self.beams = beams
        self.frontiers: list[list[Node]] = []
        self.not_submitted: list[Node] = []  # nodes of frontiers that would not be submitted as things stand
        self._builder, self._seed, self._full = builder, seed, full

    def candidates(self, frontier: Sequence[Node], step: int) -> Sequence[Candidates]:
        assert step == len(self.frontiers)
        self.frontiers.append(list(frontier))
        for node in frontier if step else ():
            nodes, limit = self._builder.row(node.row), self._builder.limit(node.row)
            self.not_submitted += [node] if node.number not in nodes.best(limit) else []
        return [self.after(row, self._builder.row(row).path(number)) for row, number in frontier]

    def after(self, row: int, path: Sequence[int]) -> tuple[list[tuple[int, float]], float]:
        """Four tokens, likeliest first, and an entropy."""
        random = np.random.default_rng([self._seed, row, *path])
        tokens, confidence = random.permutation(8)[:4], np.sort(random.random(4))[::-1]
        return list(zip(tokens.tolist(), confidence.tolist(), strict=True)), float(random.random())

    def has_room(self, row: int, more: int) -> bool:
        return row not in self._full


Path = tuple[int, ...]


def _paths(tree: DraftTree, row: int) -> list[Path]:
    """The tokens on the way to each node of a row."""
    start = int(tree.offsets[row]) + row + 1
    return [tuple(path) for path in tree.path_tokens()[start : start + int(tree.counts[row])]]


def _best(chain: Sequence[Path], chances: dict[Path, float], limit: int) -> list[Path]:
    """A main chain and the likeliest other nodes, `limit` in all; of equal chances the first drafted."""
    others = sorted((path for path in chances if path not in chain), key=lambda path: -chances[path])
    return [*chain, *others[: max(limit - len(chain), 0)]]


@given(data=st.data(), seed=st.integers(0, 2**32), depths=st.lists(st.integers(0, 4), min_size=1, max_size=3))
def test_candidates_are_submitted_by_their_chance(data: st.DataObject, seed: int, depths: list[int]) -> None:
    """After each node of the main chain those above the floor, the likeliest up to the limit; the chain always."""
    table = data.draw(_tables(len(depths)))
    ends = data.draw(st.sets(st.integers(0, 7), max_size=3))
    builder = TreeBuilder(len(depths), table)
    source = _Source(builder, seed)
    rows = [row for row, depth in enumerate(depths) if depth]
    frontiers = TreeGrowth(builder, source, np.array(depths), ends).run(rows, None)
    tree = builder.build()
    assert frontiers == [len(frontier) for frontier in source.frontiers]
    for row, depth in enumerate(depths):
        chain: list[Path] = []
        chances: dict[Path, float] = {}
        facts: dict[Path, tuple[int, float, float]] = {}
        while len(chain) < depth and not (chain and chain[-1][-1] in ends):
            parent = chain[-1] if chain else ()
            candidates, entropy = source.after(row, parent)
            before = chances.get(parent, 1.0)
            for rank, (token, confidence) in enumerate(candidates[: table.width[row]]):
                path, chance = (*parent, token), before * _calibrated(table, row, rank, confidence)
                if rank and not chance > table.floor[row]:
                    break
                if not rank:
                    chain.append(path)
                chances[path], facts[path] = chance, (rank, confidence, entropy)
        submitted = _best(chain, chances, int(table.nodes[row]))
        nodes = tree.row_nodes(row)
        assert _paths(tree, row) == submitted
        assert tree.chain[row] == len(chain)
        assert tree.depth[nodes].tolist() == [len(path) for path in submitted]
        columns = tree.rank[nodes].tolist(), tree.confidence[nodes].tolist(), tree.entropy[nodes].tolist()
        assert list(zip(*columns, strict=True)) == [facts[path] for path in submitted]


@given(data=st.data(), seed=st.integers(0, 2**32), depths=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_beams_draft_from_likely_nodes_that_have_room(data: st.DataObject, seed: int, depths: list[int]) -> None:
    """Main chains are those of drafts without beams; other nodes go on only if they are submitted and have room."""
    count = len(depths)
    table = data.draw(_tables(count))
    full = data.draw(st.sets(st.integers(0, count - 1)))
    one = np.ones((count, 1))
    stop = StopTable(survival=0.0 * one, calibration=one, unstated=one, worth=one, step=0.0 * one)
    trees = []
    for beams in (False, True):
        builder = TreeBuilder(count, table)
        source = _Source(builder, seed, beams=beams, full=sorted(full))
        TreeGrowth(builder, source, np.array(depths)).run(range(count), stop)
        tree = builder.build()
        trees.append(tree)
        assert not source.not_submitted
        for row, number in (node for frontier in source.frontiers[1:] for node in frontier):
            nodes = builder.row(row)
            if number not in nodes.chain:
                assert beams
                assert row not in full
                assert nodes.chances[number] > table.floor[row]
        for row in range(count):
            paths = _paths(tree, row)
            assert tree.counts[row] <= max(int(table.nodes[row]), depths[row])
            assert all(path[:-1] in paths for path in paths if len(path) > 1)
            assert max(map(len, paths)) == depths[row]
    chains = [tree.main_chains() for tree in trees]
    np.testing.assert_array_equal(chains[0].token, chains[1].token)
    assert chains[0].chain.tolist() == chains[1].chain.tolist() == depths


def test_a_row_without_room_drafts_on_from_its_main_chain_only() -> None:
    """The other row drafts from several nodes of one depth in one pass."""
    table = Shape(width=3, nodes=64).table(2)
    stop = Shape(beam=True).stop(2)
    builder = TreeBuilder(2, table)
    source = _Source(builder, 5, beams=True, full=[1])
    frontiers = TreeGrowth(builder, source, array(3, 3)).run([0, 1], stop)
    assert len(frontiers) == 3
    assert [len([node for node in frontier if node.row == 1]) for frontier in source.frontiers] == [1, 1, 1]
    assert max(len([node for node in frontier if node.row == 0]) for frontier in source.frontiers) > 1


def test_a_chain_ends_after_the_token_at_which_its_survival_is_too_low() -> None:
    """Survival is the product of the chances of all tokens: 0.7, 0.49, 0.34."""
    one: FloatArray = np.ones((2, 1))
    stop = StopTable(
        survival=np.array([[0.4], [0.6]]), calibration=0.7 * one, unstated=one, worth=one, step=np.zeros((2, 1))
    )
    builder = TreeBuilder(2)
    assert TreeGrowth(builder, _Source(builder, 0), array(6, 6)).run([0, 1], stop) == [2, 2, 1]
    assert builder.build().chain.tolist() == [3, 2]


def _job(prompts: list[list[int]], depths: list[int], shape: Shape, temperature: float = 0.0) -> DraftJob:
    rows = [RowSampling(SamplingParams(temperature=temperature), i, p, len(p), (1,)) for i, p in enumerate(prompts)]
    count = len(prompts)
    return DraftJob(
        np.arange(count),
        prompts,
        array(*depths),
        SamplingBatch(rows, 24),
        stop=shape.stop(count),
        tree=shape.table(count),
    )


class _Counting(TableRunner):
    """Counts its passes."""

    passes: int = 0

    def forward(self, packed: Packed) -> Forward:
        self.passes += 1
        return super().forward(packed)


@given(temperature=st.sampled_from([0.0, 0.9]), width=st.integers(2, 5), count=st.integers(1, 3))
def test_side_candidates_of_a_draft_model_cost_no_pass(temperature: float, width: int, count: int) -> None:
    """Candidates are the largest of log q + g, each with its softmax; the main chain is the draft without them."""
    prompts = [[5, 6 + i] for i in range(count)]
    runner, job = _Counting(), _job(prompts, [3] * count, Shape(width=width, nodes=64), temperature)
    draft = DraftModelDrafter(runner).propose(job)
    chains = DraftModelDrafter(TableRunner()).propose(_job(prompts, [3] * count, Shape(width=1), temperature)).tree
    tree = draft.tree
    assert runner.passes == len(draft.work[0].passes) == 3
    assert tree.chain.tolist() == [3] * count
    assert tree.counts.tolist() == [3 * width] * count
    main = tree.main_chains()
    np.testing.assert_array_equal(main.token, chains.token)
    np.testing.assert_allclose(main.confidence, chains.confidence, rtol=1e-5)
    for row, prompt in enumerate(prompts):
        nodes = tree.row_nodes(row)
        for depth in range(3):
            text = [*prompt, *main.token[main.row_nodes(row)][:depth].tolist()]
            scores = runner.logits(text)[None].numpy() / (temperature or 1.0)
            tokens, confidence = leading(job.sampling.perturbed(scores, array(row), array(depth)), width)
            children = np.flatnonzero(tree.parent[nodes] == depth - 1)
            children = children[np.argsort(tree.rank[nodes][children])]
            assert tree.token[nodes][children].tolist() == tokens[0].tolist()
            np.testing.assert_allclose(tree.confidence[nodes][children], confidence[0], rtol=1e-4)


def test_a_draft_model_drafts_from_several_nodes_in_one_pass_and_from_no_end() -> None:
    """An end token is submitted, and nothing is drafted after it."""
    runner, job = _Counting(), _job([[5, 6]], [4], Shape(width=4, nodes=64, beam=True))
    draft = DraftModelDrafter(runner).propose(job)
    assert runner.passes == len(draft.work[0].passes) == 4
    side = [parent for parent in draft.tree.parent.tolist() if parent >= draft.tree.chain[0]]
    assert side, "some node off the main chain has children"
    end = int(draft.tree.token[side[0]])
    ended = DraftModelDrafter(TableRunner(), {end}).propose(job).tree
    ends = np.flatnonzero(ended.token == end)
    assert len(ends)
    assert not np.isin(ended.parent, ends).any()


def test_a_floor_that_no_candidate_passes_leaves_the_chain() -> None:
    """The stop table ends it as if there were no tree table."""
    one: FloatArray = np.ones((2, 1))
    for minimum in (0.0, 0.3, 0.6):
        stop = StopTable(
            survival=minimum * one,
            calibration=np.tile(np.linspace(0.1, 0.9, 10), (2, 1)),
            unstated=one,
            worth=one,
            step=0 * one,
        )
        drafts = []
        for table in (None, Shape(floor=1.0).table(2)):
            job = replace(_job([[5, 6], [7, 8]], [6, 6], Shape(width=1), 0.8), stop=stop, tree=table)
            drafts.append(DraftModelDrafter(TableRunner()).propose(job).tree)
        chains, tree = drafts
        assert not tree.branched
        assert tree.counts.tolist() == chains.counts.tolist()
        np.testing.assert_array_equal(tree.token, chains.token)


def _merged(first: Row, extra: Row, table: TreeTable, row: int) -> tuple[list[Path], dict[Path, draft_trees.Node], int]:
    """The paths of one row's merged nodes in order, the nodes that they are, and the length of the main chain."""
    nodes: dict[Path, draft_trees.Node] = {}
    chances: dict[Path, float] = {(): 1.0}
    right: dict[Path, float] = {}  # P(a child that the first drafter proposed is accepted)
    for number, node in enumerate(first.nodes):
        path, parent = tuple(first.tokens(number)), tuple(first.tokens(node.parent))
        chance = 1.0 if isnan(node.confidence) else _calibrated(table, row, node.rank, node.confidence)
        right[parent] = right.get(parent, 0.0) + chance
        nodes[path], chances[path] = node, chances[parent] * chance
    for number, node in enumerate(extra.nodes):
        path, parent = tuple(extra.tokens(number)), tuple(extra.tokens(node.parent))
        if parent not in chances:
            continue
        stated = chances[parent] * (1.0 if isnan(node.confidence) else node.confidence)
        if path in nodes:
            chances[path] = max(chances[path], stated)
            continue
        chance = stated * max(1.0 - right.get(parent, 0.0), 0.0)
        if not first.nodes or chance > table.floor[row]:
            nodes[path], chances[path] = node, chance
    del chances[()]
    main = first if first.nodes else extra
    chain = [tuple(main.tokens(node)) for node in range(main.chain)]
    return _best(chain, chances, int(table.nodes[row])), nodes, len(chain)


@given(data=st.data(), count=st.integers(1, 3))
def test_merged_drafts_have_each_token_after_a_node_once(data: st.DataObject, count: int) -> None:
    """A node of both is the first draft's. One of the other draft counts only where the first is wrong."""
    table = data.draw(_tables(count, max_nodes=18))
    first = [data.draw(draft_rows(0, distinct=True, vocab=6)) for _ in range(count)]
    extra = [data.draw(draft_rows(1, distinct=True, vocab=6)) for _ in range(count)]
    one = pack(first)
    merged = merge_drafts(one, pack(extra), table)
    expected = [_merged(*rows, table, i) for i, rows in enumerate(zip(first, extra, strict=True))]
    if merged is one:
        assert all(len(nodes) == len(row.nodes) for (_, nodes, _), row in zip(expected, first, strict=True))
        return
    for i, (paths, nodes, chain) in enumerate(expected):
        if not extra[i].nodes:
            assert _paths(merged, i) == _paths(one, i)
            continue
        assert merged.chain[i] == chain
        assert _paths(merged, i) == paths
        at = merged.row_nodes(i)
        for name in ("token", "rank", "drafter", "confidence", "entropy"):
            np.testing.assert_array_equal(getattr(merged, name)[at], [getattr(nodes[path], name) for path in paths])


def test_rows_without_nodes_of_the_other_draft_keep_their_distribution() -> None:
    """A method that weighs tokens by what they were drawn from may verify the other rows of a round."""
    sampled = DraftTree.from_chains(np.array([[3, 1], [2, 0]]), np.array([2, 1]), np.full((2, 2), 0.5))
    drawn_from = np.random.default_rng(0).dirichlet(np.ones(5), 3).astype(np.float32)
    extra = DraftTree.from_chains(np.array([[0], [4]]), np.array([0, 1]), drafter=1)
    table = TreeTable(array(1, 4), array(4, 4), np.zeros(2), np.full((2, 1, 1), 0.5))
    merged = merge_drafts(replace(sampled, distribution=drawn_from), extra, table)
    assert merged.token.tolist() == [3, 1, 2, 4]
    np.testing.assert_array_equal(merged.distribution[:2], drawn_from[:2])


def _merge_with_lookup(first: list[tuple[int, int]], chain: int, tokens: list[int], table: TreeTable) -> DraftTree:
    """A tree of nodes (token, parent), each of confidence 0.5, merged with a chain of drafter 3 that states none."""
    nodes = tuple(draft_trees.Node(parent, token) for token, parent in first)
    lookup = DraftTree.from_chains(np.array([tokens]), array(len(tokens)), drafter=3)
    return merge_drafts(pack([Row(nodes, chain)]), lookup, table)


def test_a_lookup_is_merged_into_the_tree_of_a_draft_model() -> None:
    """The model's chain comes first, the lookup's tokens follow the node that both have."""
    table = Shape(width=4, nodes=16).table(1)
    assert table is not None
    tree = _merge_with_lookup([(7, -1), (8, 0), (9, -1)], 2, [9, 4, 5], table)
    assert tree.token.tolist() == [7, 8, 9, 4, 5]
    assert tree.parent.tolist() == [-1, 0, -1, 2, 3]
    assert tree.drafter.tolist() == [0, 0, 0, 3, 3]
    assert tree.chain.tolist() == [2]
    alone = _merge_with_lookup([], 0, [4, 5], table)
    assert alone.token.tolist() == [4, 5]
    assert alone.drafter.tolist() == [3, 3]
    assert alone.chain.tolist() == [2]


def test_a_merged_draft_has_no_unlikely_nodes_and_no_more_than_its_limit() -> None:
    narrow, strict = Shape(width=4, nodes=4).table(1), Shape(width=4, nodes=16, floor=0.5).table(1)
    assert narrow is not None
    assert strict is not None
    assert _merge_with_lookup([(7, -1), (8, 0), (9, -1)], 2, [9, 4, 5], narrow).token.tolist() == [7, 8, 9, 4]
    assert _merge_with_lookup([(7, -1), (8, 0)], 2, [4, 5], strict).token.tolist() == [7, 8]


def test_lookups_that_state_no_confidence_are_as_likely_as_their_parents() -> None:
    """At equal chances the limit drops the deepest of them, never a parent before its child."""
    table = TreeTable(array(9), array(4), np.zeros(1), np.full((1, RANKS, BINS), 0.5))
    tree = _merge_with_lookup([(7, -1)], 1, [4, 5, 6, 7, 8], table)
    assert tree.token.tolist() == [7, 4, 5, 6]
    assert [isnan(confidence) for confidence in tree.confidence.tolist()] == [False, True, True, True]
