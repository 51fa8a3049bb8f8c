"""Rounds of an engine whose drafts branch, as everything that tells of them has them: the same sums everywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from transformers import PreTrainedTokenizerFast

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.engine.core import EngineLimits
from adaptspec.request import Request, SamplingParams
from adaptspec.telemetry.request_record import bars_of
from adaptspec.telemetry.totals import Totals, by_proposer
from tests.engine.branching import Branched, Shape
from tests.engine.conftest import Notes, make_core, run
from tests.fakes import TableRunner

BOTH = ("draft-model", "ngram")
SHAPES = [Shape(), Shape(beam=True), Shape(union=True), Shape(beam=True, union=True, nodes=64), Shape(width=1)]


@pytest.fixture(params=SHAPES, ids=str)
def notes(tokenizer: PreTrainedTokenizerFast, request: pytest.FixtureRequest) -> Notes:
    """What a sink was told of six requests, four at a time."""
    notes = Notes()
    policy = Branched(BOTH, lambda n, size: [(n + i) % 6 for i in range(size)], request.param)
    drafters = [DraftModelDrafter(TableRunner(seed=1, blend=0.8), (1,)), NgramDrafter(longest=2, shortest=1)]
    limits = EngineLimits(max_rows=4, prefill_tokens=8)
    core = make_core(tokenizer, TableRunner(), drafters, {"p": (policy, "coupled")}, sinks=[notes], limits=limits)
    sampling = SamplingParams(max_tokens=40, temperature=0.7, ignore_eos=True)
    run(core, [Request(f"r{i}", (5, 6, 7, 5, 6, 7 + i), replace(sampling, seed=i)) for i in range(6)])
    return notes


def test_requests_and_rounds_count_the_same(notes: Notes) -> None:
    """Depths and nodes, however it is added up; the target's pass has a place for each node."""
    totals, stats = Totals().plus(notes.records), [done.stats for done in notes.completions.values()]
    assert sum(one.nodes for one in stats) == totals.nodes
    assert sum(one.drafted for one in stats) == totals.drafted_tokens
    assert sum(one.accepted for one in stats) == totals.accepted_tokens > 0
    nodes, kept = by_proposer(notes.records, 2)
    assert (nodes.sum(), kept.sum()) == (totals.nodes, totals.accepted_tokens)
    for one in notes.records:
        assert one.verify_tokens == one.nodes.sum() + len(one.rows) + one.prefill_tokens
    bars = [bar for one in notes.records for bars in bars_of([one]).values() for bar in bars]
    assert sum(bar.nodes for bar in bars) == totals.nodes
    assert all(bar.straight <= bar.accepted <= bar.drafted <= bar.nodes for bar in bars)
