"""Rehearsed rounds: both models take turns, as in service, and leave their caches as they were."""

from __future__ import annotations

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.engine.profiler_rounds import ProfiledRounds
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
