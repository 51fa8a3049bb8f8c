"""A time per output token for every request: goodput in which tokens of late rows count more."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from adaptspec.arrays import FloatArray
from adaptspec.control.algorithms.algorithm import AlgorithmSpec, Parts
from adaptspec.control.algorithms.goodput import Goodput, GoodputSettings
from adaptspec.control.policy import BatchSignals
from adaptspec.rounds import RoundRecord

# A row's weight doubles with every token that it is late, up to this.
_MAX_WEIGHT = 8.0
_MARGIN = 0.02  # of the target, since a row must be late for its weight to rise


class Slo(Goodput):
    """Goodput with a weight for each row: 1 while it keeps its pace, twice as much for each token that it is late.

    A row is late by the tokens it should have emitted since it began, at the target, and has not; where all rows are
    late, what counts is by how much more than the least late. All rows of a batch share the time of its rounds: a late
    row drafts deeper, and rows that keep their pace draft less, as far as that lets the late ones catch up. A target
    that is never at risk costs nothing. It admits and refuses no requests.

    Use it for interactive streams in one batch with other work, with a target between the pace of plain decoding and
    the best that drafting can do. Source: the aim of AdaServe (Li et al. 2025, "Accelerating Multi-SLO LLM Serving with
    SLO-Customized Speculative Decoding"), which picks nodes of draft trees for each request's target.
    """

    def __init__(self, spec: SloSpec, parts: Parts) -> None:
        settings = GoodputSettings(parts.tiers, parts.drafters, stops=parts.stops, max_width=parts.max_width)
        super().__init__(parts.cost, parts.max_rows, parts.tasks, settings)
        self._target = spec.time_per_output_token_ms / 1e3 * (1.0 - _MARGIN)
        self._seconds: FloatArray = np.zeros(parts.max_rows)
        self._tokens: FloatArray = np.zeros(parts.max_rows)

    def start(self, row: int) -> None:
        super().start(row)
        self._seconds[row] = self._tokens[row] = 0.0

    def learn(self, record: RoundRecord, memo: object = None) -> None:
        super().learn(record, memo)
        current = record.current_rows >= 0
        self._seconds[record.rows[current]] += record.timing.total
        self._tokens[record.rows[current]] += record.emitted[current]
        self._planned = None  # weights have changed

    def _weights(self, signals: BatchSignals) -> FloatArray:
        late = np.maximum(self._seconds[signals.rows] / self._target - self._tokens[signals.rows], 0.0)
        return np.asarray(np.exp2(np.minimum(late - late.min(), np.log2(_MAX_WEIGHT))))


class SloSpec(AlgorithmSpec):
    """`choose:` of a time per output token for every request."""

    takes_tiers: ClassVar[bool] = True
    has_value: ClassVar[bool] = True
    takes_drafters: ClassVar[bool] = True
    default_stop: ClassVar[str] = "marginal-goodput"
    guarded: ClassVar[bool] = False  # it may give up throughput for the pace of a request

    algorithm: Literal["slo"]
    time_per_output_token_ms: float = Field(gt=0.0, le=60_000.0, description="Target, on average; no guarantee.")

    def build(self, parts: Parts) -> Slo:
        return Slo(self, parts)
