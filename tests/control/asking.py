"""What a stop rule is asked, in one line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaptspec.arrays import FloatArray
from adaptspec.control.algorithms.algorithm import Choice, ExpectedValue
from adaptspec.control.algorithms.round_terms import ModelTerms
from adaptspec.control.cost_model import DraftPrices
from adaptspec.decision import StopTable

CURVE = 1e-3 + 1e-4 * np.arange(64.0)  # seconds of verifying n more tokens


def ask(table: StopTable | None, confidence: Sequence[float], entropy: Sequence[float] | None = None) -> list[bool]:
    """Which rows go on after their first token."""
    assert table is not None
    sure = np.array(confidence)
    rows = np.arange(len(sure))
    going: list[bool] = table.continues(
        1, rows, sure, sure if entropy is None else np.array(entropy), survival=table.chances(1, rows, sure)
    ).tolist()
    return going


def drafted(table: StopTable | None, confidence: Sequence[float], row: int = 0) -> int:
    """Tokens that one row drafts of those with these confidences."""
    assert table is not None
    at, survival = np.array([row]), np.ones(1)
    for step, sure in enumerate(confidence, 1):
        survival *= table.chances(step, at, np.array([sure]))
        if not table.continues(step, at, np.array([sure]), np.array([np.nan]), survival=survival).item():
            return step
    return len(confidence)


def terms(
    acceptance: FloatArray, calibration: FloatArray, step: float = 2e-4, row: float = 0.0, drafter_id: int = 0
) -> ModelTerms:
    """A model that is always asked for all of its depth; `acceptance` [B, D], `calibration` [B, bins]."""
    rows, depth = acceptance.shape
    gains = np.concatenate((np.zeros((rows, 1)), np.cumsum(np.cumprod(acceptance, axis=1), axis=1)), axis=1)
    return ModelTerms(
        drafter_id,
        acceptance,
        gains,
        np.arange(depth + 1.0),
        DraftPrices(0.0, step, row, 0.0, 0.0),
        np.zeros(rows),
        calibration,
        np.ones(1),
    )


def choice(outlook: ExpectedValue | None, rows: int = 1) -> Choice:
    return Choice(np.full(rows, 7), np.zeros(rows, dtype=np.int64), outlook)
