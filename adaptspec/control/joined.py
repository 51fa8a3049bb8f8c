"""Decisions of several policies, each for some rows of a round, as one. Knows rows; of policies nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaptspec.control.policy import Decision, whole_expected, whole_provenance
from adaptspec.draft_tables import StopTable, TemperatureTable
from adaptspec.types import IntArray


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
