"""Rounds that several policies share: who decides for which rows, and who learns of them. Knows rows alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from adaptspec.control.arrays import alike
from adaptspec.control.policy import BatchSignals, Decision, whole_expected, whole_provenance
from adaptspec.draft_tables import StopTable, TemperatureTable
from adaptspec.types import IntArray, RoundRecord


def decided(who: IntArray, decide: Callable[[int, BatchSignals], Decision], signals: BatchSignals) -> Decision:
    """The round's decision where `decide` is asked for the rows of each number in `who` [B]."""
    first = who.item(0)
    if alike(who, first):
        return decide(first, signals)
    return joined([(mine, decide(which, signals.take(mine))) for which, mine in _groups(who)], len(who))


def taught(who: IntArray, learn: Callable[[int, RoundRecord], None], record: RoundRecord) -> None:
    """Have `learn` told of the rows of each number in `who` [B]."""
    first = who.item(0)
    if alike(who, first):
        learn(first, record)
        return
    for which, mine in _groups(who):
        learn(which, record.take(mine))


def joined(parts: Sequence[tuple[IntArray, Decision]], rows: int) -> Decision:
    """The decision for `rows` rows from those for parts of them, by position in the batch; drafters count alike."""
    depths, reasons, drafter = (np.zeros(rows, dtype=np.int64) for _ in range(3))
    for mine, part in parts:
        depths[mine], reasons[mine], drafter[mine] = part.depths, part.reasons, part.drafter
    return Decision(
        depths,
        reasons,
        drafter,
        StopTable.stacked([(mine, part.stop) for mine, part in parts], rows),
        whole_provenance([(mine, part.provenance) for mine, part in parts if part.provenance is not None], rows),
        TemperatureTable.stacked([(mine, part.temperature) for mine, part in parts], rows),
        tuple(sorted({which for _, part in parts for which in part.watched})),
        whole_expected([(mine, part.expected) for mine, part in parts if part.expected is not None], rows),
    )


def _groups(who: IntArray) -> list[tuple[int, IntArray]]:
    """Each number there is, and where."""
    return [(which, np.flatnonzero(who == which)) for which in np.unique(who).tolist()]
