"""Trees over real models: grammars, logprobs, both kinds of cache, chunks of prompts beside them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.request import Request, SamplingParams
from adaptspec.types import Completion
from tests.engine.branching import Branched, Shape
from tests.engine.conftest import make_core, run
from tests.engine.test_constrained import GRAMMARS
from tests.models.packing import load_runner

SHAPES = [Shape(nodes=nodes, beam=beam, union=union) for nodes in (4, 16, 64) for beam in (0, 1) for union in (0, 1)]  # type: ignore[arg-type]
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.7, "frequency_penalty": 1.0, "logprobs": 1},
    {"temperature": 0.0, "repetition_penalty": 1.3},
]


class Cores:
    """Engines on the same tiny models, in place and in pages; how they draft is set before each run."""

    def __init__(self, target: Path, draft: Path, tokenizer: PreTrainedTokenizerFast) -> None:
        self._paths, self._tokenizer = (target, draft), tokenizer
        self.depths, self.shape = [0], Shape()

    @cache  # noqa: B019 (as long as the module)
    def core(self, block_size: int | None) -> tuple[EngineCore, Branched]:
        paged = {} if block_size is None else {"block_size": block_size}
        target, draft = (load_runner(str(path), device="cpu", max_rows=8, **paged) for path in self._paths)
        drafters = [DraftModelDrafter(draft, (1,)), NgramDrafter(longest=2, shortest=1)]
        policy = Branched(("draft-model", "ngram"), self._choose, self.shape)
        limits = EngineLimits(max_rows=8, prefill_tokens=16, max_depth=7)
        return make_core(self._tokenizer, target, drafters, {"p": (policy, "coupled")}, limits=limits), policy

    def run(
        self, requests: list[Request], depths: list[int], shape: Shape, block_size: int | None
    ) -> dict[str, Completion]:
        core, policy = self.core(block_size)
        self.depths, policy.shape = depths, shape
        return run(core, requests)

    def _choose(self, number: int, size: int) -> list[int]:
        return [self.depths[(number + i) % len(self.depths)] for i in range(size)]


@pytest.fixture(scope="module")
def cores(target_path: Path, draft_path: Path, tokenizer: PreTrainedTokenizerFast) -> Cores:
    return Cores(target_path, draft_path, tokenizer)


@settings(max_examples=15, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    depths=st.lists(st.integers(0, 7), min_size=1, max_size=10),
    shape=st.sampled_from(SHAPES),
    params=st.sampled_from(PARAMS),
    block_size=st.sampled_from([None, 8]),
)
def test_trees_give_plain_decoding_on_real_models(  # noqa: PLR0917 - hypothesis names them
    cores: Cores, seeds: list[int], depths: list[int], shape: Shape, params: dict[str, Any], block_size: int | None
) -> None:
    """Grammars and none side by side; log-probabilities are those of plain decoding, of the path and no other node."""
    requests = [
        Request(
            f"r{i}",
            tuple(range(40 + seed, 60 + seed)),
            SamplingParams(max_tokens=24, seed=seed, grammar=[*GRAMMARS, None][(seed + i) % 4], **params),
        )
        for i, seed in enumerate(seeds)
    ]
    plain = cores.run(requests, [0], replace(shape, width=1, union=False), block_size)
    drafted = cores.run(requests, depths, shape, block_size)
    for request in requests:
        own, its = drafted[request.id], plain[request.id]
        assert own.tokens == its.tokens
        assert own.finish is its.finish
        assert [one.token for one in own.logprobs] == [one.token for one in its.logprobs]
        torch.testing.assert_close(
            torch.tensor([one.logprob for one in own.logprobs]),
            torch.tensor([one.logprob for one in its.logprobs]),
            atol=1e-4,
            rtol=1e-4,
        )
