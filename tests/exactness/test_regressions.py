"""What broke in other engines when speculation met the rest of an API, each by the name it was known under."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from adaptspec.draft_tree import DraftTree
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Draft, Drafter, DraftJob
from adaptspec.drafting.lookup import LookupDrafter
from adaptspec.models.runner import ModelInfo
from adaptspec.request import Grammar, Request, SamplingParams
from adaptspec.results import Completion, FinishReason
from tests.engine.conftest import byte_level
from tests.exactness.harness import Case, Script, hold, serve
from tests.exactness.worlds import TOKENIZER, World
from tests.fakes import TableRunner

DEPTHS = (0, 1, 2, 3, 5, 7)
ALONE = Script(requests=1, rows=1)


def _world(tokenizer: PreTrainedTokenizerFast = TOKENIZER, **target: int) -> World:
    drafters = [DraftModelDrafter(TableRunner(seed=1, blend=0.95)), LookupDrafter(24)]
    return World(TableRunner(**target), drafters, tokenizer)


def _answer(world: World, request: Request, depth: int, drafter: str = "draft-model") -> Completion:
    """The answer under drafts of a depth, which must be that of plain decoding."""
    result = serve(Case(drafter=drafter, depths=str(depth)), world, ALONE, [request])
    hold(result, world, ALONE)
    return result.done[request.id]


def _at_depths(world: World, request: Request, drafter: str = "draft-model") -> list[Completion]:
    """The answers at every depth, for which something was drafted."""
    done = [_answer(world, request, depth, drafter) for depth in DEPTHS]
    assert sum(one.stats.drafted for one in done) > 0
    return done


def test_penalties_with_ngram_drafts() -> None:
    """A repeated token is penalised at each position of the draft that repeats it, not only at the first."""
    params = SamplingParams(60, temperature=0.0, frequency_penalty=0.3, presence_penalty=0.2, ignore_eos=True)
    _at_depths(_world(), Request("r", (5, 6, 7) * 5, params), "ngram")


def test_min_p_skipped() -> None:
    """min_p holds at every drafted position: no token is kept that is less likely than it allows."""
    params = SamplingParams(max_tokens=60, seed=1, min_p=0.3, ignore_eos=True, logprobs=1)
    for done in _at_depths(_world(), Request("r", (5, 6, 7), params)):
        assert all(entry.logprob >= entry.top[0][1] + np.log(0.3) - 1e-5 for entry in done.logprobs)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_zero_with_speculation(temperature: float) -> None:
    """An accepted draft has the log-probability that plain decoding reports."""
    params = SamplingParams(max_tokens=40, seed=1, temperature=temperature, ignore_eos=True, logprobs=0)
    for done in _at_depths(_world(), Request("r", (5, 6, 7), params)):
        assert all(entry.logprob < 0.0 for entry in done.logprobs)


class _Alphabet(TableRunner):
    """Writes the alphabet on and on."""

    def __init__(self) -> None:
        super().__init__(vocab=2)
        self.info = ModelInfo("abc", "abc", 0, 260, 96, "abc", (1,), "float32")

    def logits(self, tokens: list[int]) -> torch.Tensor:
        scores = torch.zeros(260)
        scores[tokens[-1] + 1] = 9.0
        return scores


def _alphabet(tokenizer: PreTrainedTokenizerFast, drafter: Drafter | None = None) -> World:
    return World(_Alphabet(), [drafter or DraftModelDrafter(_Alphabet())], tokenizer)


def _behind_a(tokenizer: PreTrainedTokenizerFast, params: SamplingParams, name: str = "r") -> Request:
    return Request(name, tuple(tokenizer.encode("a")), params)


def test_earliest_stop_match_and_extra_tokens_after_a_stop(tokenizer: PreTrainedTokenizerFast) -> None:
    """Of two stop strings within one round's tokens the earlier ends the text, and no token follows it."""
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True, stop=("fg", "d", "zz"))
    for done in _at_depths(_alphabet(tokenizer), _behind_a(tokenizer, params)):
        assert (done.text, tokenizer.decode(done.tokens), done.finish) == ("bc", "bcd", FinishReason.STOP)


def test_stop_strings_wait_for_min_tokens_at_every_depth(tokenizer: PreTrainedTokenizerFast) -> None:
    """One within the first min_tokens is text like any other, and ends nothing once there are enough of them."""
    params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True, stop=("d", "h"), min_tokens=5)
    for done in _at_depths(_alphabet(tokenizer), _behind_a(tokenizer, params)):
        assert (done.text, done.finish) == ("bcdefg", FinishReason.STOP)


@pytest.mark.parametrize("max_tokens", [1, 6])
@pytest.mark.parametrize("depth", DEPTHS)
def test_a_stop_string_before_half_a_character_ends_the_request_at_once(max_tokens: int, depth: int) -> None:
    """The token that completes it also begins a character: later tokens, or none, must not decide what it was."""
    vocabulary = [bytes([byte]) for byte in range(22)] + [b"\xa0", b"ab\xe4"]
    params = SamplingParams(max_tokens=max_tokens, stop=("b",), logit_bias={23: 100.0}, seed=1)
    done = _answer(_world(byte_level(vocabulary)), Request("r", (5, 6, 7), params), depth)
    assert (done.finish, done.text, done.tokens) == (FinishReason.STOP, "a", (23,))


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("room", [1, 2, 5, 8])
def test_context_limit_exact_for_every_depth(depth: int, room: int) -> None:
    """The last token that fits is written, and none beyond, however near the limit a round begins."""
    params = SamplingParams(max_tokens=500, temperature=0.0, ignore_eos=True)
    done = _answer(_world(context=40), Request("r", (5,) * (40 - room), params), depth)
    assert (len(done.tokens), done.finish) == (room, FinishReason.LENGTH)


class _Padded(Drafter):
    """A drafter that proposes these tokens and then -1, as padded batches do."""

    name = "ngram"

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens

    def propose(self, job: DraftJob) -> Draft:
        count = int(job.depths.max())
        drafted = np.array([[*self._tokens, *[-1] * count][:count]] * len(job.rows))
        return Draft(DraftTree.from_chains(drafted, np.full(len(job.rows), count)))


def test_minus_one_draft_padding_into_grammar(tokenizer: PreTrainedTokenizerFast) -> None:
    """Padding reaches neither the grammar nor the target."""
    world = _alphabet(tokenizer, _Padded(tokenizer.encode("cd")))
    params = SamplingParams(max_tokens=20, temperature=0.0, grammar=Grammar('start: "bcdefgh" | "xyz"', "lark"))
    done = _answer(world, _behind_a(tokenizer, params), 6, "ngram")
    assert (done.text, done.finish) == ("bcdefgh", FinishReason.STOP)
    assert 0 < done.stats.drafted <= 2 * done.stats.rounds


def test_stale_mask_after_slot_reuse(tokenizer: PreTrainedTokenizerFast) -> None:
    """One row, one request after the other: each has its own grammar, or none; one was aborted in the middle."""
    target = _Alphabet()
    world = World(target, [LookupDrafter(target.info.vocab_size)], tokenizer)
    written = {"aborted": "bbbbbb", "g1": "bbbbbb", "none": None, "g2": "zyx", "again": "bbbbbb"}
    asked = [
        _behind_a(
            tokenizer,
            SamplingParams(6, temperature=0.0, grammar=None if text is None else Grammar(f'start: "{text}"', "lark")),
            name,
        )
        for name, text in written.items()
    ]
    script = Script(requests=5, rows=1, abort=1)
    result = serve(Case(drafter="ngram", depths="3"), world, script, asked)
    hold(result, world, script)
    assert result.done["aborted"].finish is FinishReason.ABORT
    texts = {name: one.text for name, one in result.done.items() if name != "aborted"}
    assert texts == {"g1": "bbbbbb", "none": "bcdefg", "g2": "zyx", "again": "bbbbbb"}
