"""Rounds that go on with an earlier decision: they are few where a request drafts, and none is lost to a policy."""

from __future__ import annotations

from typing import ClassVar

from adaptspec.engine.core import EngineLimits
from adaptspec.request import Request, SamplingParams
from adaptspec.types import RoundRecord
from tests.exactness import dictated
from tests.exactness.harness import Case, Notes, answers
from tests.exactness.worlds import CONTEXT, table


class Noted(dictated.Dictated):
    """Notes what it learns from."""

    learned: ClassVar[list[RoundRecord]] = []

    def learn(self, record: RoundRecord) -> None:
        self.learned.append(record)


def rounds(depths: str) -> tuple[list[RoundRecord], list[RoundRecord]]:
    """Decoding rounds of a long request, and those that were learned from. By the clock of a world, deciding takes as
    long as a round.
    """
    Noted.learned.clear()
    notes, spec = Notes(), dictated.policy(Case(depths=depths).policy, kind=Noted)
    core = table("draft-model").engine([spec], EngineLimits(max_rows=2), [notes])
    answers(core, [Request("r", (5, 6, 7), SamplingParams(CONTEXT - 3, temperature=0.0, ignore_eos=True))])
    return [record for record in notes.records if len(record.rows)], Noted.learned


def test_one_decision_serves_rounds_without_drafts_and_its_record_counts_for_all() -> None:
    found, learned = rounds("0")
    assert len(learned) < 0.75 * len(found)
    assert 0 <= len(found) - sum(one.stands_for for one in learned) < 8


def test_rounds_of_requests_that_draft_are_each_decided() -> None:
    found, learned = rounds("3")
    assert [one.stands_for for one in learned] == [1] * len(found)
