"""Log-probabilities are the model's own: of raw logits, and each once. The matrix holds drafts to these."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.engine.core import EngineLimits
from adaptspec.engine.logprobs import token_logprobs
from adaptspec.request import Request, SamplingParams
from adaptspec.results import Completion, FinishReason, TokenLogprob
from tests.exactness import dictated
from tests.exactness.harness import SCRIPTS, Case, answers, assert_streamed, drive
from tests.exactness.worlds import CONTEXT, table
from tests.fakes import TableRunner

SCORED = SamplingParams(
    16, temperature=0.9, seed=3, frequency_penalty=0.5, ignore_eos=True, logprobs=2, prompt_logprobs=0
)


def expected(tokens: list[int], first: int) -> list[float]:
    """What the table says of tokens[first:], each given those before it."""
    model = TableRunner()
    return [float(model.logits(tokens[:i]).log_softmax(0)[tokens[i]]) for i in range(first, len(tokens))]


def check(request: Request, done: Completion) -> None:
    prompt = list(request.prompt)
    assert [entry.token for entry in done.logprobs] == list(done.tokens)
    found = [entry.logprob for entry in done.logprobs]
    assert np.allclose(found, expected([*prompt, *done.tokens], len(prompt)), atol=1e-5)
    assert [entry.token for entry in done.prompt_logprobs] == prompt[1:]
    assert np.allclose([entry.logprob for entry in done.prompt_logprobs], expected(prompt, 1), atol=1e-5)


@pytest.mark.parametrize("tokens", [0, 16])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 20])
def test_prompt_and_output_have_those_of_the_table(length: int, tokens: int) -> None:
    """Of a prompt that is read in chunks of 8, alone or with an answer behind it."""
    core = table("draft-model").engine([dictated.policy(Case(depths="3").policy)], EngineLimits(2, prefill_tokens=8))
    request = Request("r", tuple(range(2, 2 + length)), replace(SCORED, max_tokens=tokens))
    deltas = drive(core, [request], SCRIPTS["alone"])
    done = deltas[-1].completion
    assert done is not None
    assert (len(done.tokens), done.finish) == (tokens, FinishReason.LENGTH)
    check(request, done)
    assert_streamed(done, deltas)


def test_a_prompt_that_is_read_again_is_scored_once() -> None:
    """The older request needs the room of the newer one when that has read a part of its prompt."""
    world = table("draft-model", capacity=64)
    core = world.engine([dictated.policy(Case(depths="0").policy)], EngineLimits(4, prefill_tokens=4))
    sampling = replace(SCORED, max_tokens=20)
    asked = [Request("older", tuple(range(2, 19)), sampling)]
    asked.append(Request("newer", tuple(2 + i % 22 for i in range(43)), sampling))
    done = answers(core, asked)
    assert core.scheduler.preemptions == 1
    for request in asked:
        check(request, done[request.id])


class BreaksOnce(TableRunner):
    """Fails to roll one row back, in the middle of a commit: those before it have their new tokens by then."""

    def __init__(self, at: int) -> None:
        super().__init__(context=CONTEXT)
        self._left = at

    def truncate(self, row: int, length: int) -> None:
        self._left -= 1
        if self._left == 0:
            raise MemoryError("a fault")
        super().truncate(row, length)


@pytest.mark.parametrize("at", [2, 5, 9])
def test_tokens_of_a_round_that_failed_keep_their_logprobs(at: int) -> None:
    """They are not scored by another request's logits later, nor left out."""
    world = replace(table("draft-model"), target=BreaksOnce(at))
    core = world.engine([dictated.policy(Case(depths="3").policy)], EngineLimits(4, prefill_tokens=8))
    asked = [Request(f"r{i}", (5, 6, 2 + i), SCORED) for i in range(3)]
    done = answers(core, asked)
    for request in asked:
        assert done[request.id].error is None
        check(request, done[request.id])


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
