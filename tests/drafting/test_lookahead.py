"""Lookahead: lanes yield what the target goes on with, drafts are what they yielded, texts stay plain decoding's."""

from __future__ import annotations

import numpy as np
import pytest

from adaptspec.decision import TreeTable
from adaptspec.drafting.drafter import DraftJob
from adaptspec.drafting.lookahead import LookaheadDrafter
from adaptspec.models.draft import Draft, NodeChoices
from adaptspec.models.sampling import SamplingBatch
from tests.fakes import array

NO_SAMPLING = SamplingBatch([], 32)


def _table(nodes: int) -> TreeTable:
    return TreeTable(array(32), array(nodes), np.zeros(1), np.ones((1, 1, 1)))


def _propose(drafter: LookaheadDrafter, tokens: list[int], depth: int = 7, nodes: int = 48) -> Draft:
    return drafter.propose(DraftJob(array(0), [tokens], array(depth), NO_SAMPLING, tree=_table(nodes)))


def _decode(drafter: LookaheadDrafter, text: list[int], rounds: int) -> list[int]:
    """Tokens accepted per round where the target says (last token + 1) mod 9, whatever came before."""
    accepted = []
    for _ in range(rounds):
        draft = _propose(drafter, text)
        count = int(draft.counts[0])
        own = [(token + 1) % 9 for token in [text[-1], *draft.tokens[0, :count].tolist()]]
        choices = NodeChoices(draft, 0, own)
        drafter.absorb(0, choices)
        new: list[int] = []
        while choices.after([*new, (new or text)[-1] + 1 - 9 * ((new or text)[-1] == 8)]) is not None:
            new.append(((new or text)[-1] + 1) % 9)
        accepted.append(len(new))
        text += [*new, ((new or text)[-1] + 1) % 9]
    return accepted


def test_lanes_learn_how_the_target_goes_on() -> None:
    """Where what follows depends on the last token alone, three tokens a round are right once lanes have run."""
    assert min(_decode(LookaheadDrafter(), [3, 7, 1], 30)[-10:]) >= 3


def test_a_draft_keeps_to_depth_and_ceiling_and_ends_with_its_row() -> None:
    """Lanes are cut, not refused; and a row that is free again knows nothing of the request before."""
    drafter = LookaheadDrafter()
    _decode(drafter, [3, 7, 1], 10)
    draft = _propose(drafter, [3, 7, 1], depth=2, nodes=5)
    assert draft.counts[0] == 5
    assert draft.depths[0] == 2
    drafter.free(0)
    assert drafter.offer(0, [3, 7, 1], 7) == pytest.approx([np.nan], nan_ok=True)
