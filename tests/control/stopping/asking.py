"""Asking a stop about a batch, in one line."""

from __future__ import annotations

import numpy as np

from adaptspec.control.policy import RoundStop


def ask(
    stop: RoundStop | None, confidence: list[float], step: int = 1, entropy: list[float] | None = None
) -> list[bool]:
    assert stop is not None
    sure = np.array(confidence)
    going: list[bool] = stop(step, np.arange(len(sure)), sure, sure if entropy is None else np.array(entropy)).tolist()
    return going
