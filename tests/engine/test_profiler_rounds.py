"""Rehearsed rounds: both models take turns, as in service, and leave their caches as they were."""

from __future__ import annotations

import pytest

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.engine.profiler_rounds import ProfiledRounds
from adaptspec.errors import ConfigError
from tests.fakes import TableRunner


def test_models_take_turns_while_they_are_timed() -> None:
    """Rounds are what is to be known: between two passes of several tokens of the one, the other has run."""
    order: list[str] = []

    class Noted(TableRunner):
        called = "target"

        def forward(self, packed):  # type: ignore[no-untyped-def]
            order.append(f"{self.called} {packed.counts.max()}")
            return super().forward(packed)

    target, draft = Noted(context=128), Noted(seed=1, context=128)
    draft.called = "draft"
    rehearsal = ProfiledRounds(target, 2, 8, 8)
    rehearsal.join(DraftModelDrafter(draft), 8, 8)
    pieces = rehearsal.pieces((1, 2, 4))
    for _ in range(2):
        order.clear()
        for piece in pieces:
            piece()
        assert order == ["target 1", "draft 1", "target 2", "draft 1", "draft 1", "draft 1", "target 4"]
    rehearsal.close()
    assert target.length(0) == draft.length(1) == 0


def test_no_deeper_than_the_draft_model_has_room() -> None:
    """A draft of a shorter context drafts as far as it reaches."""
    target, draft = TableRunner(context=128), TableRunner(seed=1, context=12)
    rehearsal = ProfiledRounds(target, 1, 8, 8)
    rehearsal.join(DraftModelDrafter(draft), 8, 4)
    for piece in rehearsal.pieces((8,)):
        piece()
    assert draft.fed == 8 + 3
    assert target.fed == 8 + 8


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="use fewer rows"):
        ProfiledRounds(TableRunner(capacity=20), 2, 8, 8)
