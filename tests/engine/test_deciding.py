"""Rounds that go on with an earlier decision: they are few where a request drafts, and none is lost to a policy."""

from __future__ import annotations

import pytest

from adaptspec.engine.core import EngineLimits
from adaptspec.request import Request, SamplingParams
from adaptspec.types import RoundRecord
from tests.exactness import dictated
from tests.exactness.harness import Notes, answers
from tests.exactness.worlds import CONTEXT, table


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[RoundRecord]:
    """What the dictated algorithm learns from."""
    records: list[RoundRecord] = []
    monkeypatch.setattr(dictated.Dictated, "learn", lambda _, record: records.append(record))
    return records


def rounds(depths: list[int], drafter: str = "draft-model") -> list[RoundRecord]:
    """Decoding rounds of a long request. By the clock of a world, deciding takes as long as a round."""
    notes = Notes()
    spec = dictated.policy(f"{{choose: {{algorithm: dictated, depths: {depths}}}, drafters: [{drafter}]}}")
    core = table("draft-model").engine([spec], EngineLimits(max_rows=2), [notes])
    answers(core, [Request("r", (5, 6, 7), SamplingParams(CONTEXT - 3, temperature=0.0, ignore_eos=True))])
    return [record for record in notes.records if len(record.rows)]


def test_one_decision_serves_rounds_without_drafts_and_its_record_counts_for_all(learned: list[RoundRecord]) -> None:
    found = rounds([0])
    assert len(learned) < 0.75 * len(found)
    assert 0 <= len(found) - sum(one.stands_for for one in learned) < 8


def test_rounds_of_requests_that_draft_are_each_decided(learned: list[RoundRecord]) -> None:
    found = rounds([2])
    assert [one.stands_for for one in learned] == [1] * len(found)
