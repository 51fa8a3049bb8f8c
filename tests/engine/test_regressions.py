"""What broke in other engines when speculation met the rest of an API, each by the name it was known under."""

from __future__ import annotations

import json

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import DraftJob
from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.models.draft import Draft
from adaptspec.request import Grammar, Request, SamplingParams
from adaptspec.types import Completion, FinishReason
from tests.engine.conftest import Dictated, byte_level, make_core, run
from tests.fakes import TableRunner

DEPTHS = (0, 1, 2, 3, 5, 7)


def _core(tokenizer: PreTrainedTokenizerFast, depth: int, drafter: str = "ngram", **target: int) -> EngineCore:
    drafters = [DraftModelDrafter(TableRunner(seed=1, blend=0.95)), NgramDrafter(longest=2, shortest=1)]
    policy = Dictated((drafter,), lambda n, size: [depth] * size)
    limits = EngineLimits(max_rows=1, prefill_tokens=8, max_depth=7)
    return make_core(tokenizer, TableRunner(**target), drafters, {"p": (policy, "coupled")}, limits=limits)


def _at_depths(tokenizer: PreTrainedTokenizerFast, request: Request, drafter: str = "ngram") -> list[Completion]:
    return [run(_core(tokenizer, depth, drafter), [request])[request.id] for depth in DEPTHS]


def _drafted(completions: list[Completion]) -> int:
    return sum(done.stats.drafted for done in completions)


def test_penalties_with_ngram_drafts(tokenizer: PreTrainedTokenizerFast) -> None:
    """A repeated token is penalised at each position of the draft that repeats it, not only at the first."""
    params = SamplingParams(
        max_tokens=60, temperature=0.0, frequency_penalty=0.3, presence_penalty=0.2, ignore_eos=True
    )
    done = _at_depths(tokenizer, Request("r", (5, 6, 7) * 5, params))
    assert len({one.tokens for one in done}) == 1
    assert _drafted(done) > 0


def test_min_p_skipped(tokenizer: PreTrainedTokenizerFast) -> None:
    """min_p holds at every drafted position: no token is kept that is less likely than it allows."""
    params = SamplingParams(max_tokens=60, seed=1, min_p=0.3, ignore_eos=True, logprobs=1)
    done = _at_depths(tokenizer, Request("r", (5, 6, 7), params), "draft-model")
    assert len({one.tokens for one in done}) == 1
    assert _drafted(done) > 0
    for entry in (entry for one in done for entry in one.logprobs):
        assert entry.logprob >= entry.top[0][1] + np.log(0.3) - 1e-5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_zero_with_speculation(tokenizer: PreTrainedTokenizerFast, temperature: float) -> None:
    """An accepted draft has the log-probability that plain decoding tells."""
    params = SamplingParams(max_tokens=40, seed=1, temperature=temperature, ignore_eos=True, logprobs=0)
    done = _at_depths(tokenizer, Request("r", (5, 6, 7), params), "draft-model")
    told = np.array([[entry.logprob for entry in one.logprobs] for one in done])
    assert np.allclose(told, told[0], atol=1e-5)
    assert (told < 0.0).all()
    assert _drafted(done) > 0


def test_earliest_stop_match_and_extra_tokens_after_a_stop(
    byte_target: TableRunner, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Of two stop strings within one round's tokens the earlier ends the text, and no token follows it."""
    policy_of = {d: Dictated(("draft-model",), lambda n, size, d=d: [d] * size) for d in DEPTHS}  # type: ignore[misc]
    texts, tokens = set(), set()
    for depth in DEPTHS:
        core = make_core(tokenizer, byte_target, [DraftModelDrafter(byte_target)], {"p": (policy_of[depth], "coupled")})
        params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True, stop=("fg", "d", "zz"))
        done = run(core, [Request("r", tuple(tokenizer.encode("a")), params)])["r"]
        texts.add(done.text)
        tokens.add(done.tokens)
        assert done.finish is FinishReason.STOP
    assert texts == {"bc"}
    assert {tokenizer.decode(one) for one in tokens} == {"bcd"}


def test_stop_strings_wait_for_min_tokens_at_every_depth(
    byte_target: TableRunner, tokenizer: PreTrainedTokenizerFast
) -> None:
    """One within the first min_tokens is text like any other, and ends nothing once there are enough of them."""
    for depth in DEPTHS:
        policy = Dictated(("draft-model",), lambda n, size, d=depth: [d] * size)  # type: ignore[misc]
        core = make_core(tokenizer, byte_target, [DraftModelDrafter(byte_target)], {"p": (policy, "coupled")})
        params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True, stop=("d", "h"), min_tokens=5)
        done = run(core, [Request("r", tuple(tokenizer.encode("a")), params)])["r"]
        assert (done.text, done.finish) == ("bcdefg", FinishReason.STOP), depth


@pytest.fixture
def byte_target() -> TableRunner:
    """Writes the alphabet on and on."""

    class Alphabet(TableRunner):
        def __init__(self) -> None:
            super().__init__(vocab=2)
            self.info = TableRunner(vocab=2).info.__class__("abc", "abc", 0, 260, 96, "abc", (1,), "float32")

        def logits(self, tokens: list[int]):  # type: ignore[no-untyped-def]
            import torch

            scores = torch.zeros(260)
            scores[tokens[-1] + 1] = 9.0
            return scores

    return Alphabet()


@pytest.mark.parametrize("max_tokens", [1, 6])
def test_a_stop_string_before_half_a_character_ends_the_request_at_once(max_tokens: int) -> None:
    """The token that completes it also begins a character: later tokens, or none, must not decide what it was."""
    vocabulary = [bytes([byte]) for byte in range(22)] + [b"\xa0", b"ab\xe4"]
    params = SamplingParams(max_tokens=max_tokens, stop=("b",), logit_bias={23: 100.0})
    for done in _at_depths(byte_level(vocabulary), Request("r", (5, 6, 7), params)):
        assert (done.finish, done.text, done.tokens) == (FinishReason.STOP, "a", (23,))


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("room", [1, 2, 5, 8])
def test_context_limit_exact_for_every_depth(tokenizer: PreTrainedTokenizerFast, depth: int, room: int) -> None:
    """The last token that fits is written, and none beyond, however near the limit a round begins."""
    params = SamplingParams(max_tokens=500, temperature=0.0, ignore_eos=True)
    core = _core(tokenizer, depth, "draft-model", context=40)
    done = run(core, [Request("r", (5,) * (40 - room), params)])["r"]
    assert (len(done.tokens), done.finish) == (room, FinishReason.LENGTH)


class _Padded:
    """A drafter that proposes what it is told and then -1, as padded batches do."""

    name = "ngram"
    non_anticipating = True

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    def cache_gap(self, row: int, length: int) -> int:
        return 0

    def propose(self, job: DraftJob) -> Draft:
        count = int(job.depths.max())
        drafted = np.array([(self._tokens + [-1] * count)[:count]] * len(job.rows))
        unknown = np.full(drafted.shape, np.nan)
        return Draft(drafted, np.full(len(job.rows), count), unknown, unknown)

    def commit(self, row: int, valid: int, tokens: list[int]) -> None:
        pass

    def free(self, row: int) -> None:
        pass


def test_minus_one_draft_padding_into_grammar(byte_target: TableRunner, tokenizer: PreTrainedTokenizerFast) -> None:
    """Padding reaches neither the grammar nor the target."""
    policy = Dictated(("ngram",), lambda n, size: [6] * size)
    drafter = _Padded(tokenizer.encode("bc"))
    core = make_core(tokenizer, byte_target, [drafter], {"p": (policy, "coupled")})
    params = SamplingParams(max_tokens=20, temperature=0.0, grammar=Grammar('start: "bcdefgh" | "xyz"', "lark"))
    done = run(core, [Request("r", tuple(tokenizer.encode("a")), params)])["r"]
    assert (done.text, done.finish) == ("bcdefgh", FinishReason.STOP)
    assert done.stats.drafted <= 2 * done.stats.rounds


def test_stale_mask_after_slot_reuse(byte_target: TableRunner, tokenizer: PreTrainedTokenizerFast) -> None:
    """One row, one request after the other: each has its own grammar, or none; one was aborted in the middle."""
    policy = Dictated(("ngram",), lambda n, size: [3] * size)
    limits = EngineLimits(max_rows=1, prefill_tokens=8, max_depth=7)
    core = make_core(tokenizer, byte_target, [NgramDrafter()], {"p": (policy, "coupled")}, limits=limits)
    texts = {"g1": '"bbbbbb"', "none": None, "g2": json.dumps("zyx"), "again": '"bbbbbb"'}
    prompt = tuple(tokenizer.encode("a"))
    params = {
        name: SamplingParams(
            max_tokens=6, temperature=0.0, grammar=None if text is None else Grammar(f"start: {text}", "lark")
        )
        for name, text in texts.items()
    }
    core.add(Request("aborted", prompt, params["g1"]))
    core.step()
    core.abort("aborted")
    done = run(core, [Request(name, prompt, one) for name, one in params.items()])
    assert [done[name].text for name in texts] == ["bbbbbb", "bcdefg", "zyx", "bbbbbb"]
