"""Log-probabilities: the target's own, the same at every depth, free of what sampling did."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.engine.core import EngineCore
from adaptspec.engine.model_executor import token_logprobs
from adaptspec.request import Request, SamplingParams
from adaptspec.types import Completion, FinishReason, TokenLogprob
from tests.engine.conftest import Dictated, make_core, run
from tests.fakes import TableRunner

PROMPT = st.lists(st.integers(2, 23), min_size=1, max_size=20)


def _core(tokenizer: PreTrainedTokenizerFast, depths: list[int], capacity: int = 10**9) -> EngineCore:
    drafters = [DraftModelDrafter(TableRunner(seed=1, blend=0.8)), NgramDrafter(longest=2, shortest=1)]
    policy = Dictated(("draft-model", "ngram"), lambda n, size: [depths[(n + i) % len(depths)] for i in range(size)])
    return make_core(tokenizer, TableRunner(capacity=capacity), drafters, {"p": (policy, "coupled")})


def _expected(tokens: list[int], first: int) -> list[float]:
    """What the table says of tokens[first:], each given those before it."""
    table = TableRunner()
    return [float(table.logits(tokens[:i]).log_softmax(0)[tokens[i]]) for i in range(first, len(tokens))]


def _check(prompt: list[int], done: Completion) -> None:
    tokens = [*prompt, *done.tokens]
    assert [entry.token for entry in done.logprobs] == list(done.tokens)
    assert np.allclose([entry.logprob for entry in done.logprobs], _expected(tokens, len(prompt)), atol=1e-5)
    assert [entry.token for entry in done.prompt_logprobs] == prompt[1:]
    told = [entry.logprob for entry in done.prompt_logprobs]
    assert np.allclose(told, _expected(prompt, 1), atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    prompts=st.lists(PROMPT, min_size=1, max_size=5),
    depths=st.lists(st.integers(0, 7), min_size=1, max_size=12),
    temperature=st.sampled_from([0.0, 0.9]),
    capacity=st.sampled_from([64, 10**9]),
)
def test_logprobs_are_the_targets_at_every_depth(
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[list[int]],
    depths: list[int],
    temperature: float,
    capacity: int,
) -> None:
    """Broke elsewhere: 0.0 for accepted drafts. Also when a request gives way and is read again, and beside others."""
    params = SamplingParams(
        max_tokens=16, temperature=temperature, seed=3, frequency_penalty=0.5, logprobs=2, prompt_logprobs=0
    )
    silent = SamplingParams(max_tokens=16, temperature=temperature, seed=4)
    requests = [Request(f"r{i}", tuple(p), silent if i % 3 == 2 else params) for i, p in enumerate(prompts)]
    done = run(_core(tokenizer, depths, capacity), requests)
    for i, prompt in enumerate(prompts):
        if i % 3 == 2:
            assert (done[f"r{i}"].logprobs, done[f"r{i}"].prompt_logprobs) == ((), ())
        else:
            _check(prompt, done[f"r{i}"])


class _BreaksOnce(TableRunner):
    """Fails to roll one row back, in the middle of a commit: those before it have their new tokens by then."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._left = at

    def truncate(self, row: int, length: int) -> None:
        self._left -= 1
        if self._left == 0:
            raise RuntimeError("a fault")
        super().truncate(row, length)


@pytest.mark.parametrize("at", [2, 5, 9])
def test_tokens_of_a_round_that_failed_keep_their_logprobs(tokenizer: PreTrainedTokenizerFast, at: int) -> None:
    """They are not scored by another request's logits later, nor left out."""
    drafters = [DraftModelDrafter(TableRunner(seed=1, blend=0.8)), NgramDrafter(longest=2, shortest=1)]
    policy = Dictated(("draft-model", "ngram"), lambda _, size: [3] * size)
    core = make_core(tokenizer, _BreaksOnce(at), drafters, {"p": (policy, "coupled")})
    prompts = {f"r{i}": [5, 6, 2 + i] for i in range(3)}
    params = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True, logprobs=2, prompt_logprobs=0)
    for name, prompt in prompts.items():
        core.add(Request(name, tuple(prompt), params))
    done: dict[str, Completion] = {}
    while not core.idle:
        try:
            deltas = core.step()
        except RuntimeError as error:
            deltas = core.recover(error)
        done |= {delta.request_id: delta.completion for delta in deltas if delta.completion is not None}
    for name, prompt in prompts.items():
        assert done[name].finish is FinishReason.LENGTH, done[name].error
        _check(prompt, done[name])


@pytest.mark.parametrize("length", [1, 7, 8, 9, 20])
def test_a_prompt_alone_can_be_scored(tokenizer: PreTrainedTokenizerFast, length: int) -> None:
    """max_tokens 0 reads the prompt in chunks of 8 and emits nothing."""
    prompt = list(range(2, 2 + length))
    params = SamplingParams(max_tokens=0, prompt_logprobs=1)
    done = run(_core(tokenizer, [3]), [Request("r", tuple(prompt), params)])["r"]
    assert (done.tokens, done.text, done.finish) == ((), "", FinishReason.LENGTH)
    _check(prompt, done)


def test_a_prompt_that_is_read_again_is_scored_once(tokenizer: PreTrainedTokenizerFast) -> None:
    """The older request needs the room of the newer one when that has read a part of its prompt."""
    core = _core(tokenizer, [0], capacity=64)
    sampling = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True, logprobs=0, prompt_logprobs=0)
    prompts = {"older": list(range(2, 19)), "newer": [2 + i % 22 for i in range(43)]}
    done = run(core, [Request(name, tuple(prompt), sampling) for name, prompt in prompts.items()])
    assert core.scheduler.preemptions == 1
    for name, prompt in prompts.items():
        _check(prompt, done[name])


def test_pieces_have_the_logprobs_of_their_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    """What streams is what the completion holds; the prompt's come first, and once."""
    core = _core(tokenizer, [3, 0, 7])
    core.add(Request("r", (5, 6, 7), SamplingParams(max_tokens=20, seed=1, logprobs=1, prompt_logprobs=1)))
    deltas = []
    while not core.idle:
        deltas += core.step()
    done = deltas[-1].completion
    assert done is not None
    assert all(len(delta.tokens) == len(delta.logprobs) for delta in deltas)
    assert tuple(entry for delta in deltas for entry in delta.logprobs) == done.logprobs
    assert [len(delta.prompt_logprobs) for delta in deltas] == [2] + [0] * (len(deltas) - 1)


@given(most=st.integers(0, 20), seed=st.integers(0, 10))
def test_alternatives_are_the_likeliest(most: int, seed: int) -> None:
    """In order, as many as asked for or as there are, and none more likely than the first."""
    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=(3, 12))).float()
    entries = token_logprobs(logits, [1, 2, 3], most)
    for entry, row in zip(entries, logits.log_softmax(1), strict=True):
        values = [logprob for _, logprob in entry.top]
        assert values == sorted(row.tolist(), reverse=True)[: min(most, 12)]
        assert [float(row[token]) for token, _ in entry.top] == values
        assert entry == TokenLogprob(entry.token, float(row[entry.token]), entry.top)
