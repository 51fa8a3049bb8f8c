"""Scores of drafters that did not run, against runs in which they did; what catching up tells, against brute force."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Drafter, DraftJob
from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.models.sampling import SamplingBatch
from adaptspec.types import Completion, Request, RoundRecord, SamplingParams
from tests.engine.conftest import Dictated, make_core, run
from tests.fakes import TableRunner, array

BOTH = ("draft-model", "ngram")
DRAFT = TableRunner(seed=1, blend=0.8)


def _serve(
    tokenizer: PreTrainedTokenizerFast,
    requests: Sequence[Request],
    choose: Callable[[int, int], Sequence[int]],
    drafters: tuple[str, ...] = BOTH,
    method: str = "coupled",
) -> tuple[list[RoundRecord], dict[str, Completion]]:
    policy = Dictated(drafters, choose)
    loaded: list[Drafter] = [DraftModelDrafter(TableRunner(seed=1, blend=0.8)), NgramDrafter(longest=2, shortest=1)]
    done = run(make_core(tokenizer, TableRunner(), loaded, {"p": (policy, method)}), requests)
    return policy.records, done


def _requests(count: int, temperature: float = 0.0, **more: float) -> list[Request]:
    goes_on = "min_tokens" not in more
    params = [
        SamplingParams(max_tokens=24, temperature=temperature, seed=i, ignore_eos=goes_on, **more)  # type: ignore[arg-type]
        for i in range(count)
    ]
    return [Request(f"r{i}", (5, 6, 7 + i), params[i]) for i in range(count)]


@settings(max_examples=15, deadline=None)
@given(depths=st.lists(st.integers(0, 5), min_size=1, max_size=20), temperature=st.sampled_from([0.0, 0.9]))
def test_a_score_is_what_the_drafter_gets_when_it_runs(
    tokenizer: PreTrainedTokenizerFast, depths: list[int], temperature: float
) -> None:
    """Exact at the depth that was emitted, accepted and drafted, from whatever round and beside whatever drafter."""
    requests = _requests(3, temperature)
    scored, _ = _serve(tokenizer, requests, lambda n, size: [depths[(n + i) % len(depths)] for i in range(size)])
    played, done = _serve(tokenizer, requests, lambda n, size: [4] * size, ("ngram",))
    real = {}
    for record in played:
        for i, name in enumerate(record.request_ids):
            outcome = int(record.depths[i]), int(record.drafted[i]), int(record.accepted[i])
            real[name, int(record.context[i])] = outcome
    texts = {request.id: [*request.prompt, *done[request.id].tokens] for request in requests}
    compared = 0
    for record in scored:
        if record.shadow is None or record.shadow_drafted is None:
            continue
        assert (record.shadow[0] == -1).all(), "a draft model cannot be scored"
        for i, name in enumerate(record.request_ids):
            ran = record.drafter[i] == 1 and record.depths[i] > 0
            assert (record.shadow[1, i] == -1) == ran
            if ran:
                continue
            context, emitted = int(record.context[i]), int(record.emitted[i])
            drafted, accepted = int(record.shadow_drafted[1, i]), int(record.shadow[1, i])
            assert (drafted, accepted) == _would_get(texts[name], context, emitted)
            if (name, context) in real:
                depth = min(emitted, real[name, context][0])
                got = tuple(min(count, depth) for count in real[name, context][1:])
                assert (min(drafted, depth), min(accepted, depth)) == got
                compared += 1
    assert compared or not scored


def _would_get(text: list[int], context: int, depth: int) -> tuple[int, int]:
    sampling = SamplingBatch([], 24, torch.device("cpu"))
    draft = NgramDrafter(2, 1).propose(DraftJob(array(0), [text[:context]], array(depth), sampling))
    drafted = int(draft.counts[0])
    right = [a == b for a, b in zip(draft.tokens[0, :drafted].tolist(), text[context:], strict=False)]
    return drafted, right.index(False) if False in right else len(right)


def test_nothing_is_scored_where_nobody_asks(tokenizer: PreTrainedTokenizerFast) -> None:
    """A policy of one drafter, which cannot be scored: its rounds carry no scores and cost no lookups."""
    records, _ = _serve(tokenizer, _requests(2), lambda n, size: [n % 2] * size, ("draft-model",))
    assert all(record.shadow is None for record in records)
