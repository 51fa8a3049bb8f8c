"""What whole rounds report: scores of drafters that did not run."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.drafting.drafter import RowStart
from adaptspec.drafting.lookup import LookupDrafter
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.model_executor import ModelExecutor
from adaptspec.models.sampling import RowSampling
from adaptspec.request import Request, SamplingParams
from adaptspec.results import Completion
from adaptspec.rounds import RoundRecord
from tests.exactness import dictated
from tests.exactness.harness import Notes, Overlapping, answers
from tests.exactness.worlds import table


def serve(
    requests: Sequence[Request], choose: str, *, overlaps: bool = False
) -> tuple[list[RoundRecord], dict[str, Completion]]:
    notes, world = Notes(), table("draft-model")
    executor = (Overlapping if overlaps else ModelExecutor)(world.target, world.drafters)
    core = world.engine([dictated.policy(choose)], EngineLimits(4, prefill_tokens=8), [notes], executor)
    return notes.records, answers(core, requests)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 999), temperature=st.sampled_from([0.0, 0.9]), overlaps=st.booleans())
def test_a_score_is_what_the_drafter_gets_when_it_runs(seed: int, temperature: float, *, overlaps: bool) -> None:
    """Exact at the depth that was emitted, accepted and drafted, whichever drafter ran in the round. If rounds overlap,
    the drafter has not yet read the tokens that it is scored on.
    """
    sampling = [SamplingParams(24, temperature=temperature, seed=i, ignore_eos=True) for i in range(3)]
    requests = [Request(f"r{i}", (5, 6, 7 + i), one) for i, one in enumerate(sampling)]
    both = f"{{choose: {{algorithm: dictated, depths: [0, 1, 2, 4], seed: {seed}}}, drafters: [draft-model, ngram]}}"
    scored, done = serve(requests, both, overlaps=overlaps)
    played, _ = serve(requests, "{choose: {algorithm: dictated, depths: [4]}, drafters: [ngram]}")
    real = {}
    for record in played:
        for i, name in enumerate(record.request_ids):
            outcome = int(record.depths[i]), int(record.drafted[i]), int(record.accepted[i])
            real[name, int(record.context[i])] = outcome
    texts = {request.id: [*request.prompt, *done[request.id].tokens] for request in requests}
    asked, compared = {request.id: request for request in requests}, 0
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
            assert (drafted, accepted) == would_get(asked[name], texts[name], context, emitted)
            if (name, context) in real:
                depth = min(emitted, real[name, context][0])
                got = tuple(min(count, depth) for count in real[name, context][1:])
                assert (min(drafted, depth), min(accepted, depth)) == got
                compared += 1
    assert compared


def would_get(request: Request, text: list[int], context: int, depth: int) -> tuple[int, int]:
    """Tokens that a lookup finds after the first `context` ones, and how many of them are right."""
    sampling, prompt = request.sampling, len(request.prompt)
    drafter = LookupDrafter(24, (1,))
    drafter.start(0, RowStart(RowSampling(sampling, sampling.seed or 0, text[:context], prompt, (1,))))
    return drafter.score(0, text[: context + depth], context)
