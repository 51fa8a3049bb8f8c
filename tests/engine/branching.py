"""Policies whose drafts branch, as a test dictates, over drafters of their own choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from adaptspec.arrays import FloatArray
from adaptspec.control.policy import BatchSignals
from adaptspec.decision import Decision, StopTable, TreeTable, Union
from tests.engine.conftest import Dictated

STATED: FloatArray = (np.arange(10) + 0.5) / 10  # candidates are as likely as they state


@dataclass(frozen=True)
class Shape:
    """How drafts branch: a comb; a beam, where nodes off the main chain are drafted on from; a union with `beside`."""

    width: int = 4
    nodes: int = 16
    floor: float = 0.0
    beam: bool = False
    union: bool = False

    def table(self, rows: int) -> TreeTable | None:
        if self.width == 1:
            return None
        every = np.ones(rows, dtype=np.int64)
        calibration = np.broadcast_to(STATED, (rows, 2, 10))
        return TreeTable(every * self.width, every * self.nodes, np.full(rows, self.floor), calibration)

    def stop(self, rows: int) -> StopTable | None:
        """Bounds of survival that let nodes go on which are likelier than one in twenty."""
        if not self.beam:
            return None
        one = np.ones((rows, 1))
        return StopTable(
            survival=0.05 * one, calibration=np.tile(STATED, (rows, 1)), unstated=one, worth=one, step=0.01 * one
        )


class Branched(Dictated):
    """Dictated depths, and drafts of a shape; the first of `drafters` drafts, the second is united with it."""

    def __init__(self, drafters: tuple[str, ...], choose: Callable[[int, int], Sequence[int]], shape: Shape) -> None:
        super().__init__(drafters, choose)
        self.shape = shape

    def decide(self, signals: BatchSignals) -> Decision:
        rows = signals.batch_size
        decision = super().decide(signals)
        decision = replace(decision, tree=self.shape.table(rows), stop=self.shape.stop(rows))
        if not self.shape.union:
            return decision
        beside = np.ones(rows, dtype=np.int64)
        depths = np.minimum((self._round + np.arange(rows)) % 5, signals.limits)
        return replace(decision, drafter=np.zeros_like(beside), union=Union(beside, depths))
