"""Families that transformers computes: speculation leaves every token as it is, also far beyond sliding windows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from adaptspec.draft_tree import DraftTree
from adaptspec.drafting.drafter import Draft, Drafter, DraftJob
from adaptspec.drafting.tree_builder import TreeBuilder
from adaptspec.errors import ModelError
from adaptspec.models.transformers_runner import TransformersRunner
from adaptspec.request import Request, SamplingParams
from adaptspec.results import SpeculationStats
from tests.exactness.harness import Case, Script, hold, plain, serve
from tests.exactness.worlds import World
from tests.models.families import EXACT, REFUSED, saved
from tests.models.packing import load_runner

LENGTH = 24  # tokens: prompt and answer are far longer than the windows
PROMPT = (5, 9, 12, 7, 5, 9, 12, 8, 33, 5, 9, 12, 7, 41, 20, 5, 9, 12, 7, 41)


class Recalling(Drafter):
    """Drafts the rest of texts it knows, every fourth token wrong: some drafts are kept and some taken back."""

    name = "ngram"

    def __init__(self, texts: Sequence[tuple[int, ...]]) -> None:
        self._texts = texts

    def propose(self, job: DraftJob) -> Draft:
        drafts = np.zeros((len(job.rows), int(job.depths.max(initial=0))), dtype=np.int64)
        counts = np.zeros(len(job.rows), dtype=np.int64)
        for i, (told, depth) in enumerate(zip(job.tokens, job.depths.tolist(), strict=True)):
            for text in self._texts:
                if text[: len(told)] == tuple(told):
                    ahead = text[len(told) : len(told) + depth]
                    counts[i] = len(ahead)
                    drafts[i, : len(ahead)] = [t ^ (len(told) + j) % 4 // 3 for j, t in enumerate(ahead)]
        return Draft(DraftTree.from_chains(drafts, counts))


class Branching(Recalling):
    """The same, and beside each drafted token its neighbour, of which one is right wherever the text is known."""

    def propose(self, job: DraftJob) -> Draft:
        chains, builder = super().propose(job).tree, TreeBuilder(len(job.rows))
        for i in range(len(job.rows)):
            nodes, tokens = builder.row(i), chains.token[chains.row_nodes(i)].tolist()
            for token in tokens:
                nodes.chain.append(nodes.add(nodes.chain_end, token))
            for depth, token in enumerate(tokens):
                nodes.add(depth - 1, token ^ 1, rank=1)
        return Draft(builder.build())


REQUESTS = (
    Request("greedy", PROMPT, SamplingParams(LENGTH, temperature=0.0, ignore_eos=True)),
    Request("sampled", PROMPT, SamplingParams(LENGTH, temperature=0.7, seed=7, ignore_eos=True)),
)
SIDE_BY_SIDE = Script(requests=2)


def drafted(world: World, shape: str, depth: int) -> list[SpeculationStats]:
    """What became of drafts for both requests, whose answers must be those without."""
    result = serve(Case(drafter="ngram", shape=shape, depths=str(depth)), world, SIDE_BY_SIDE, REQUESTS)
    hold(result, world, SIDE_BY_SIDE)
    return [one.stats for one in result.done.values()]


@pytest.mark.parametrize("family", EXACT)
def test_a_family_is_token_exact_whatever_is_drafted(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, family: str
) -> None:
    """Greedy as transformers itself generates, and sampled the same as without drafts, of which some are taken back."""
    folder = saved(tmp_path / "model", *EXACT[family])
    runner = load_runner(str(folder), device="cpu", max_rows=4)
    assert isinstance(runner, TransformersRunner)
    alone = [plain(World(runner, (), tokenizer), request) for request in REQUESTS]
    texts = [PROMPT + answer.tokens for answer in alone]
    chains = drafted(World(runner, [Recalling(texts)], tokenizer), "chain", 7)
    assert all(stats.drafted > stats.accepted > LENGTH / 2 for stats in chains)
    trees = drafted(World(runner, [Branching(texts)], tokenizer), "comb", 3)
    if runner.info.takes_trees:  # where the chain goes wrong, the token beside it is kept
        assert sum(one.acceptance_rate for one in trees) > sum(one.acceptance_rate for one in chains)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor([PROMPT])
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=LENGTH)
    assert alone[0].tokens == tuple(expected[0, len(PROMPT) :].tolist())


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_cannot_take_drafts_back_is_refused_in_one_line(tmp_path: Path, family: str) -> None:
    folder = saved(tmp_path / "model", *REFUSED[family])
    with pytest.raises(ModelError, match=r"rejected drafts cannot be taken back.*; choose a model") as refusal:
        load_runner(str(folder), device="cpu", max_rows=1)
    assert "\n" not in str(refusal.value)
