"""What is noted of model-free drafters is what they propose, position by position."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.bench.teacher_forcing import Judge, Written
from adaptspec.drafting.drafter import DraftJob, RowStart
from adaptspec.drafting.lookup import LookupDrafter
from adaptspec.drafting.ngram_index import Histories
from adaptspec.models.sampling import RowSampling, SamplingBatch
from adaptspec.request import SamplingParams
from adaptspec.simulation.tape import DraftView
from tests.fakes import TableRunner

PROMPT = (5, 6, 7, 8)
OUTPUT = (5, 6, 7, 5, 6, 8, 6, 7, 8, 6, 5, 7, 6, 8, 5, 6, 7, 7, 5, 8)


def view_of(temperature: float, *, history: bool = True, before: int = 0) -> DraftView:
    """The view of a text, after so many others like it."""
    runner = TableRunner()
    judge = Judge(
        runner, [LookupDrafter(runner.info.vocab_size, name="counts", histories=Histories())], history=history
    )
    text = Written(PROMPT, OUTPUT, len(OUTPUT), SamplingParams(len(OUTPUT), temperature, seed=3))
    for _ in range(before):
        judge.views(text)
    return judge.views(text)["counts"]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_chains_and_candidates_are_what_the_drafter_proposes(temperature: float) -> None:
    """Asked in order, as it reads on: its chain's length, how sure it is, and where the text's own token stands."""
    view, runner = view_of(temperature, history=False), TableRunner()
    drafter, params = (
        LookupDrafter(runner.info.vocab_size, name="counts", histories=Histories()),
        SamplingParams(len(OUTPUT), temperature, seed=3),
    )
    row = RowSampling(params, 3, list(PROMPT), len(PROMPT), ())
    drafter.start(0, RowStart(row))
    batch = SamplingBatch([row], runner.info.vocab_size)
    assert view.top is not None
    for at, token in enumerate(OUTPUT):
        tokens = [*PROMPT, *OUTPUT[:at]]
        draft = drafter.propose(DraftJob(np.zeros(1, dtype=np.int64), [tokens], np.array([64]), batch)).tree
        assert view.reach[at] == len(draft.token)
        if len(draft.token):
            assert view.confidence[at] == view.top[at, 0] == draft.confidence[0]
            assert (view.rank[at] == 0) == view.agreed[at] == (draft.token[0] == token)
    assert 0 < view.agreed.sum() < len(OUTPUT)
    assert ((view.rank > 0) & (view.rank < 8)).any(), "no candidate beside the first is ever right"


def test_history_is_that_of_the_requests_before() -> None:
    """A text that came before is known from its beginning on; without history nothing is."""
    fresh, known = view_of(0.0), view_of(0.0, before=2)
    assert known.agreed.sum() > fresh.agreed.sum()
    forgotten = view_of(0.0, history=False, before=2)
    np.testing.assert_array_equal(forgotten.run, fresh.run)
