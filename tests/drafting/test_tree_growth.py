"""Drafts that branch: which candidates are submitted, which are drafted on from, and how sure of each the draft is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.decision import StopTable, TreeTable
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import DraftJob
from adaptspec.drafting.isolated_drafter import isolated
from adaptspec.drafting.united_drafts import united
from adaptspec.models.draft import Draft
from adaptspec.models.runner import Forward, Packed
from adaptspec.models.sampling import RowSampling, SamplingBatch, certainty, leading
from adaptspec.request import SamplingParams
from adaptspec.trees import Tree
from tests.engine.branching import Shape
from tests.fakes import TableRunner, array

CPU = torch.device("cpu")


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


def _tree(draft: Draft) -> Tree:
    assert draft.tree is not None
    return draft.tree


class Counting(TableRunner):
    """Counts its passes, and their tokens."""

    passes: int = 0

    def forward(self, packed: Packed) -> Forward:
        self.passes += 1
        return super().forward(packed)


@given(temperature=st.sampled_from([0.0, 0.9]), width=st.integers(2, 5), count=st.integers(1, 3))
def test_a_comb_has_the_next_candidates_of_each_step(temperature: float, width: int, count: int) -> None:
    """The largest of log q + g, each with its softmax; no pass more than the chain takes, whose tokens stay."""
    prompts = [[5, 6 + i] for i in range(count)]
    shape = Shape(width=width, nodes=64)
    runner, job = Counting(), _job(prompts, [3] * count, shape, temperature)
    draft = DraftModelDrafter(runner).propose(job)
    chain = DraftModelDrafter(TableRunner()).propose(_job(prompts, [3] * count, Shape(width=1), temperature))
    tree = _tree(draft)
    assert runner.passes == len(draft.work[0].passes) == 3
    for row, prompt in enumerate(prompts):
        assert tree.chain[row] == 3
        assert draft.counts[row] == 3 * width
        assert draft.tokens[row, :3].tolist() == chain.tokens[row].tolist()
        np.testing.assert_allclose(draft.confidence[row, :3], chain.confidence[row], rtol=1e-5)
        for depth in range(3):
            text = [*prompt, *chain.tokens[row, :depth].tolist()]
            scores = runner.logits(text)[None].numpy() / (temperature or 1.0)
            noisy = job.sampling.perturbed(scores, array(row), array(depth))
            tokens, sure = leading(noisy, width)
            mine = np.flatnonzero(tree.parents[row, : draft.counts[row]] == depth - 1)
            order = mine[np.argsort(tree.ranks[row, mine])]
            assert draft.tokens[row, order].tolist() == tokens[0].tolist()
            np.testing.assert_allclose(draft.confidence[row, order], sure[0], rtol=1e-4)


def test_only_what_is_likely_enough_is_submitted_and_the_least_likely_go_first() -> None:
    """Above the floor by the product along the path; the main chain stays whole under a ceiling."""
    every = DraftModelDrafter(TableRunner()).propose(_job([[5, 6]], [4], Shape(width=5, nodes=64)))
    chances = _chances(every)
    for floor, nodes in ((0.02, 64), (0.0, 7), (0.01, 9)):
        draft = DraftModelDrafter(TableRunner()).propose(_job([[5, 6]], [4], Shape(width=5, nodes=nodes, floor=floor)))
        beside = sorted((chance for chance in chances[4:] if chance > floor), reverse=True)[: nodes - 4]
        assert draft.chain[0] == 4
        np.testing.assert_allclose(sorted(_chances(draft)[4:], reverse=True), beside)


def _chances(draft: Draft) -> list[float]:
    """By the confidences themselves, in ten bins."""
    own: list[float] = []
    for place in range(int(draft.counts[0])):
        stated = (min(int(draft.confidence[0, place] * 10), 9) + 0.5) / 10
        parent = int(_tree(draft).parents[0, place])
        own.append(stated * (own[parent] if parent >= 0 else 1.0))
    return own


def test_a_beam_drafts_on_from_several_nodes_in_one_pass_and_from_no_end() -> None:
    """All nodes of a depth at once; an end token is submitted and never drafted on from."""
    shape, runner = Shape(width=4, nodes=64, beam=True), Counting()
    job = _job([[5, 6]], [4], shape)
    draft = DraftModelDrafter(runner).propose(job)
    parents = set(_tree(draft).parents[0, : draft.counts[0]].tolist())
    assert parents - set(range(-1, 4)), "some node off the main chain has children"
    assert runner.passes == len(draft.work[0].passes)
    beside = next(place for place in sorted(parents) if place > 3)
    ended = DraftModelDrafter(TableRunner(), {int(draft.tokens[0, beside])}).propose(job)
    places = np.flatnonzero(ended.tokens[0, : ended.counts[0]] == draft.tokens[0, beside])
    assert len(places)
    assert not np.isin(_tree(ended).parents[0, : ended.counts[0]], places).any()


def test_the_confidence_of_what_was_drawn_counts_the_noise() -> None:
    """softmax(log q + g) at the token under shared noise, q(x) under noise of one's own; entropy is q's in both."""
    prompts = [[5, 6], [7, 8]]
    rows = [RowSampling(SamplingParams(temperature=0.9), i, p, 2, ()) for i, p in enumerate(prompts)]
    sampling, zero = SamplingBatch(rows, 24), array(0, 0)
    scores = torch.stack([TableRunner().logits(p) for p in prompts]).numpy() / 0.9
    for shares in (True, False):
        job = DraftJob(np.arange(2), prompts, array(1, 1), sampling, shares_noise=shares)
        draft = DraftModelDrafter(TableRunner()).propose(job)
        drawn = draft.tokens[:, 0]
        noisy = sampling.perturbed(scores, np.arange(2), zero) if shares else scores
        np.testing.assert_allclose(draft.confidence[:, 0], certainty(noisy, drawn).confidence, rtol=1e-5)
        np.testing.assert_allclose(draft.entropy[:, 0], certainty(scores, drawn).entropy, rtol=1e-5)


class Broken(TableRunner):
    """Its scores are no numbers after token 9."""

    def logits(self, tokens: list[int]) -> torch.Tensor:
        scores = super().logits(tokens)
        return scores * torch.nan if tokens[-1] in self.bad else scores

    bad: frozenset[int] = frozenset()


def test_a_tree_is_cut_where_its_scores_are_no_numbers() -> None:
    """What hangs on a broken node goes with it; its neighbours stay."""
    sound = DraftModelDrafter(TableRunner()).propose(_job([[5, 6]], [4], Shape(nodes=64)))
    runner = Broken()
    runner.bad = frozenset([int(sound.tokens[0, 1])])
    draft = isolated(DraftModelDrafter(runner)).propose(_job([[5, 6]], [4], Shape(nodes=64)))
    assert draft.chain[0] == 2
    assert draft.counts[0] > 2
    assert not np.isnan(draft.confidence[0, : draft.counts[0]]).any()


def _united(first: list[list[int]], chain: int, free: list[int], table: TreeTable) -> Draft:
    """A tree of (token, parent) lines in which all are sure by half, and a chain."""
    count, told = len(first), np.full((1, max(len(first), 1)), 0.5)
    tokens, parents = (np.array([[line[i] for line in first] or [0]]) for i in (0, 1))
    ranks = np.zeros_like(tokens)
    one = Draft(tokens, array(count), told, told, tree=Tree(parents, array(chain), ranks, ranks))
    unknown = np.full((1, len(free)), np.nan)
    other = Draft(np.array([free]), array(len(free)), unknown, unknown)
    return united(one, other, table, (array(0), array(3)))


def test_a_union_has_each_token_once_and_tells_whose_it_is() -> None:
    """The first drafter's chain stays in front; what both propose is the first's; the rest hangs on where it fits."""
    table = Shape(width=4, nodes=16).table(1)
    assert table is not None
    draft = _united([[7, -1], [8, 0], [9, -1]], 2, [9, 4, 5], table)
    tree = _tree(draft)
    assert draft.tokens[0].tolist() == [7, 8, 9, 4, 5]
    assert tree.parents[0].tolist() == [-1, 0, -1, 2, 3]
    assert tree.drafters[0].tolist() == [0, 0, 0, 3, 3]
    assert tree.chain[0] == 2
    nothing = _united([], 0, [4, 5], table)
    assert nothing.tokens[0].tolist() == [4, 5]
    assert _tree(nothing).chain[0] == 2
    assert _tree(nothing).drafters[0].tolist() == [3, 3]


def test_a_union_leaves_out_what_counts_too_little() -> None:
    """Above the floor only, by its chance where the first drafter is wrong; and no more nodes than the ceiling."""
    narrow, dear = Shape(width=4, nodes=4).table(1), Shape(width=4, nodes=16, floor=0.5).table(1)
    assert narrow is not None
    assert dear is not None
    assert _united([[7, -1], [8, 0], [9, -1]], 2, [9, 4, 5], narrow).tokens[0].tolist() == [7, 8, 9, 4]
    assert _united([[7, -1], [8, 0]], 2, [4, 5], dear).counts[0] == 2


def test_prices_let_nothing_go_on_that_a_chain_would_not() -> None:
    """With a floor that no candidate passes a tree is the chain, stops and all."""
    for bound in (0.0, 0.3, 0.6):
        one = np.ones((2, 1))
        stop = StopTable(
            survival=bound * one,
            calibration=np.tile(np.linspace(0.1, 0.9, 10), (2, 1)),
            unstated=one,
            worth=one,
            step=0 * one,
        )
        drafts = []
        for tree in (None, Shape(floor=1.0).table(2)):
            job = replace(_job([[5, 6], [7, 8]], [6, 6], Shape(width=1), 0.8), stop=stop, tree=tree)
            drafts.append(DraftModelDrafter(TableRunner()).propose(job))
        assert drafts[0].counts.tolist() == drafts[1].counts.tolist()
        assert drafts[1].tree is None
        deepest = drafts[1].tokens.shape[1]
        np.testing.assert_array_equal(drafts[0].tokens[:, :deepest], drafts[1].tokens)
