"""Teacher forcing: what it says of a text is what the drafters really do there, within what they can read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptspec.bench.teacher_forcing import Judge, Written
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.lookup import LookupDrafter
from adaptspec.models.sampling import RowSampling, SamplingBatch, softmax
from adaptspec.request import SamplingParams
from adaptspec.simulation.tape import MAX_REACH
from tests.fakes import TableRunner, plain_greedy

GREEDY = SamplingParams(16, 0.0, seed=1, ignore_eos=True)


def _text(prompt: list[int], count: int = 16) -> Written:
    output = plain_greedy(TableRunner(), prompt, count)
    return Written(tuple(prompt), tuple(output), len(output), GREEDY)


@pytest.mark.parametrize("sampling", [GREEDY, replace(GREEDY, temperature=0.9)])
def test_the_rank_is_the_place_of_the_true_token_among_the_candidates(sampling: SamplingParams) -> None:
    """In the order of the draft's scores with the noise of the position, which the shares of the first ones follow."""
    draft, prompt = TableRunner(seed=1, blend=0.5), [5, 6, 7]
    text = replace(_text(prompt), sampling=sampling)
    view = Judge(TableRunner(), [DraftModelDrafter(draft)]).views(text)["draft-model"]
    assert view.top is not None
    for at, token in enumerate(text.output):
        tokens = text.tokens[: 3 + at]
        logits, here = draft.logits(tokens).unsqueeze(0), np.zeros(1, dtype=np.int64)
        batch = SamplingBatch([RowSampling(sampling, 1, tokens, 3, ())], logits.shape[1])
        scores = batch.process(logits, here, [[]])
        (drawn,) = batch.choose(scores, here, here).tolist()
        scores = batch.perturbed(scores, here, here)
        order = np.argsort(-scores[0]).tolist()
        assert order[0] == drawn
        assert order[view.rank[at]] == token
        np.testing.assert_allclose(view.top[at], softmax(scores[0])[order[:8]], atol=1e-6)
    assert view.agreed.tolist() == (view.rank == 0).tolist()
    assert len(set(view.rank.tolist())) > 2


def test_behind_a_wrong_token_the_draft_goes_on_with_its_own() -> None:
    """At each position where it errs, and nowhere else: as sure as it is of what it would have drafted next."""
    target, draft = TableRunner(), TableRunner(seed=1, blend=0.8)
    text = _text([5, 6, 7])
    view = Judge(target, [DraftModelDrafter(draft)]).views(text)["draft-model"]
    assert view.after_miss is not None
    assert np.isnan(view.after_miss.confidence[view.agreed]).all()
    for at in np.flatnonzero(~view.agreed).tolist():
        tokens = text.tokens[: 3 + at]
        tokens.append(int(draft.logits(tokens).argmax()))
        for sure in view.after_miss.confidence[at].tolist():
            assert sure == pytest.approx(float(draft.logits(tokens).softmax(0).max()), abs=1e-5)
            tokens.append(int(draft.logits(tokens).argmax()))


def test_a_lookup_is_asked_anew_at_every_position() -> None:
    """Repetition lets it propose; its run is what of its proposal really came, its reach what it proposed."""
    output = (5, 6, 7, 5, 6, 7, 9, 5, 6, 7)
    view = Judge(TableRunner(), [LookupDrafter(24)]).views(Written((3, 4), output, 10, GREEDY))["ngram"]
    assert not view.proposes[0], "4 has been seen once: nothing follows it"
    assert view.agreed[5]
    assert not view.agreed[6], "after 5 6 7 came 5 before, now 9"
    assert view.run[8] == 2, "6 and 7, where the text ends"
    assert (view.run <= view.reach).all()
    assert ((view.confidence > 0.0) == view.proposes).all()
    assert (view.rejection[~view.proposes] == 0.0).all()


def test_what_a_draft_model_cannot_read_it_does_not_draft() -> None:
    """From the first token on that its vocabulary lacks, as in the engine; what came before is judged."""
    output = (5, 6, 22, 7, 8)
    view = Judge(TableRunner(), [DraftModelDrafter(TableRunner(vocab=20))]).views(Written((3, 4), output, 5, GREEDY))
    own = view["draft-model"]
    assert own.proposes.tolist() == [True, True, True, False, False]
    assert np.isnan(own.confidence).tolist() == [False, False, False, True, True]
    assert not own.agreed[2:].any()


@pytest.mark.parametrize("ends", [{3}, {5, 8}, {11, 12, 13, 14}])
def test_a_draft_reaches_the_first_end_token_that_it_drafts(ends: set[int]) -> None:
    """From every position, over right tokens and wrong ones, as far as the tape knows what it drafts."""
    draft = TableRunner(seed=1, blend=0.8)
    text = _text([5, 6, 7])
    view = Judge(TableRunner(), [DraftModelDrafter(draft, ends)]).views(text)["draft-model"]
    for at in range(len(text.output)):
        tokens = text.tokens[: 3 + at]
        for _ in range(min(7, len(text.output) - at)):
            tokens.append(int(draft.logits(tokens).argmax()))
        goes_on = tokens[3 + at :]
        until = next((i + 1 for i, token in enumerate(goes_on) if token in ends), None)
        assert view.reach[at] > len(goes_on) if until is None else view.reach[at] == until


def test_a_draft_model_of_a_shorter_context_drafts_no_further() -> None:
    text = _text([5, 6, 7])
    size = len(text.output)
    view = Judge(TableRunner(), [DraftModelDrafter(TableRunner(context=10))]).views(text)["draft-model"]
    left = np.clip(10 - 3 - np.arange(size), 0, MAX_REACH)
    assert view.reach.tolist() == left.tolist()
    assert view.run.tolist() == np.minimum(left, size - np.arange(size)).tolist(), "its table is the target's own"
