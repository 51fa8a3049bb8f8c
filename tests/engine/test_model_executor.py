"""What whole rounds report: a draft temperature that is tuned, and scores of drafters that did not run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import DraftJob
from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.engine.core import EngineLimits
from adaptspec.models.sampling import SamplingBatch
from adaptspec.request import Request, SamplingParams
from adaptspec.types import Completion, RoundRecord
from tests.exactness import dictated
from tests.exactness.harness import Notes, answers, assert_same, plain
from tests.exactness.worlds import CONTEXT, TOKENIZER, World, table
from tests.fakes import TableRunner, array


class Flat(TableRunner):
    """The target's own table, too unsure of itself: at temperature 0.65 it would be the target."""

    def logits(self, tokens: list[int]) -> torch.Tensor:
        return 0.65 * super().logits(tokens)


@pytest.mark.parametrize("method", ["coupled", "rejection"])
def test_tuning_raises_the_acceptance_of_a_draft_that_is_too_flat(method: str) -> None:
    """And changes no text under `coupled`. Greedy requests are not tuned for."""
    usual, rates = table("draft-model"), []
    sampling = [SamplingParams(40, temperature=1.5, seed=i, ignore_eos=True) for i in range(48)]
    asked = [Request(f"r{i}", (5, 6, 2 + i % 20), one) for i, one in enumerate(sampling)]
    for more in ("", ", draft-temperature: {mode: dynamic}"):
        world = World(TableRunner(context=CONTEXT), [DraftModelDrafter(Flat(context=CONTEXT))], TOKENIZER)
        body = "{choose: {algorithm: dictated, depths: [3]}, drafters: [draft-model], verification: {method: %s}%s}"
        done = answers(world.engine([dictated.policy(body % (method, more))], EngineLimits(max_rows=4)), asked)
        late = [done[f"r{i}"].stats for i in range(16, 48)]
        rates.append(sum(one.accepted for one in late) / sum(one.drafted for one in late))
        for request in asked if method == "coupled" else ():
            assert_same(done[request.id], plain(usual, request))
    assert rates[1] > rates[0] + 0.05


def serve(requests: Sequence[Request], choose: str) -> tuple[list[RoundRecord], dict[str, Completion]]:
    notes, world = Notes(), table("draft-model")
    core = world.engine([dictated.policy(choose)], EngineLimits(4, prefill_tokens=8), [notes])
    return notes.records, answers(core, requests)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 999), temperature=st.sampled_from([0.0, 0.9]))
def test_a_score_is_what_the_drafter_gets_when_it_runs(seed: int, temperature: float) -> None:
    """Exact at the depth that was emitted, accepted and drafted, from whatever round and beside whatever drafter."""
    sampling = [SamplingParams(24, temperature=temperature, seed=i, ignore_eos=True) for i in range(3)]
    requests = [Request(f"r{i}", (5, 6, 7 + i), one) for i, one in enumerate(sampling)]
    both = f"{{choose: {{algorithm: dictated, depths: [0, 1, 2, 4], seed: {seed}}}, drafters: [draft-model, ngram]}}"
    scored, done = serve(requests, both)
    played, _ = serve(requests, "{choose: {algorithm: dictated, depths: [4]}, drafters: [ngram]}")
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
            assert (drafted, accepted) == would_get(texts[name], context, emitted)
            if (name, context) in real:
                depth = min(emitted, real[name, context][0])
                got = tuple(min(count, depth) for count in real[name, context][1:])
                assert (min(drafted, depth), min(accepted, depth)) == got
                compared += 1
    assert compared


def would_get(text: list[int], context: int, depth: int) -> tuple[int, int]:
    sampling = SamplingBatch([], 24)
    draft = NgramDrafter(2, 1).propose(DraftJob(array(0), [text[:context]], array(depth), sampling))
    drafted = int(draft.counts[0])
    right = [a == b for a, b in zip(draft.tokens[0, :drafted].tolist(), text[context:], strict=False)]
    return drafted, right.index(False) if False in right else len(right)
