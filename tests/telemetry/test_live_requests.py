"""Bars say what rounds did, request by request; what ended is told with its times."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np

from adaptspec.telemetry.live_schema import BAR_COLUMNS, bars_of, ended, last_bars
from adaptspec.types import Completion, FinishReason, Reason, Request, RoundRecord, SpeculationStats, Timings
from tests.telemetry.test_totals import record


def two_rows() -> RoundRecord:
    one = record([(4, 3, 3, 2, Reason.EXPLORE), (0, 0, 0, 1, Reason.OFF)])
    entropy = np.array([[0.5, 1.5, np.nan], [np.nan] * 3])
    return replace(one, request_ids=("a", "b"), entropy=entropy, drafter=np.array([1, 0]))


def test_a_bar_is_one_round_of_one_request() -> None:
    """Tokens behind the end are not accepted; entropy is a mean over what was drafted, or unknown."""
    bars = bars_of([two_rows(), two_rows()])
    told = dict(zip(BAR_COLUMNS, bars["a"][0], strict=True))
    assert told == {
        "depth": 4,
        "drafted": 3,
        "accepted": 2,
        "emitted": 2,
        "drafter": 1,
        "reason": int(Reason.EXPLORE),
        "entropy": 1.0,
    }
    assert bars["b"] == [(0, 0, 0, 1, 0, int(Reason.OFF), None)] * 2


def test_only_the_last_rounds_of_those_who_are_asked_for() -> None:
    kept = deque([two_rows()] * 5)
    assert {name: len(bars) for name, bars in last_bars(kept, {"b", "nobody"}, 3).items()} == {"b": 3}


def test_what_ended_is_told_in_seconds_since_1970() -> None:
    request = Request("a", (1, 2))
    waited = Completion(
        "a", "", (), 2, FinishReason.ABORT, SpeculationStats("p"), Timings(5.0, None, None, 6.5), "shut down"
    )
    told = ended(request, waited, clock=1000.0)
    assert (told["arrived"], told["admitted"], told["finished"]) == (1005.0, None, 1006.5)
    assert (told["prompt_tokens"], told["finish"], told["policy"]) == (2, "abort", "p")
