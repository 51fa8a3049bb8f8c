"""An engine whose decisions take long reuses them; each of its rounds is learned from once."""

from __future__ import annotations

from typing import ClassVar

import pytest

from adaptspec.engine.core import EngineLimits
from adaptspec.request import Request, SamplingParams
from adaptspec.rounds import RoundRecord
from tests.exactness import dictated
from tests.exactness.harness import Case, Notes, answers
from tests.exactness.worlds import CONTEXT, table


class Noted(dictated.Dictated):
    """Notes what it learns from."""

    learned: ClassVar[list[RoundRecord]] = []

    def learn(self, record: RoundRecord, memo: object = None) -> None:
        self.learned.append(record)


@pytest.mark.parametrize("depth", [0, 3])
def test_one_decision_serves_several_rounds_of_a_request(depth: int) -> None:
    """By the clock of this world deciding takes as long as a round."""
    Noted.learned.clear()
    notes, spec = Notes(), dictated.policy(Case(depths=str(depth)).policy, kind=Noted)
    core = table("draft-model").engine([spec], EngineLimits(max_rows=2), [notes])
    requests = [
        Request(str(i), (5, 6, 7), SamplingParams(CONTEXT - 3, temperature=0.0, ignore_eos=True)) for i in "abcd"
    ]
    answers(core, requests)
    core.controller.learned_policies()  # the last rounds are learned before the next decision
    rounds = [record for record in notes.records if len(record.rows)]
    assert len(rounds) > 50
    assert len({record.decision for record in Noted.learned}) < 0.75 * len(rounds)
    assert [record.number for record in Noted.learned] == [record.number for record in rounds]
    assert all(record.decision is None for record in rounds), "policies do not live as long as what sinks keep"
