"""Attributes of a request's spans: what a policy expected, and what came."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adaptspec.decision import Expected
from adaptspec.request import Request
from adaptspec.results import Completion, FinishReason, SpeculationStats, Timings
from adaptspec.rounds import RoundRecord, Timing
from adaptspec.telemetry.requests import LoggedRequest, RequestLog
from adaptspec.telemetry.span_attributes import decode_attributes, round_attributes
from tests.control.helpers import record
from tests.telemetry.rounds import started_stream
from tests.trees import SIBLING, branching


def logged(*rounds: RoundRecord) -> LoggedRequest:
    """A request that ended after these rounds."""
    log = RequestLog()
    stream, request = started_stream(log), Request("a", (1,))
    stream.started(request)
    for one in rounds:
        stream.emit(replace(one, request_ids=("a",)))
    times, stats = Timings(0.0, 0.0, 0.0, 1.0), SpeculationStats("goodput", len(rounds))
    stream.finished(request, Completion("a", "", (), 1, FinishReason.STOP, stats, times))
    assert stream.flush()
    return log.ended[0]


def timed(one: RoundRecord, seconds: float, **changes: Any) -> RoundRecord:
    return replace(one, timing=Timing(0.0, seconds, seconds), **changes)


def test_goodput_is_that_of_the_rounds_without_prompts() -> None:
    """A policy expected 900 tokens per second; 3 of 6 ms came, which is 500."""
    expected = Expected(900.0, np.array([2.5]), 500.0)
    rounds = [timed(record([3], [2]), 0.006, expected=expected)] * 4
    attributes = decode_attributes(logged(*rounds, timed(record([3], [2], prefill=64), 1.0)))
    assert attributes["adaptspec.goodput.measured"] == 500.0
    assert attributes["adaptspec.goodput.expected"] == 900.0
    assert attributes["adaptspec.spec.expected_accepted_tokens"] == 10.0
    assert attributes["adaptspec.spec.accepted_tokens"] == 10


def test_without_an_estimate_nothing_is_expected() -> None:
    attributes = decode_attributes(logged(timed(record([3], [2]), 0.006)))
    assert attributes["adaptspec.goodput.measured"] == 500.0
    assert not [name for name in attributes if "expected" in name]


def test_a_round_has_its_expectation() -> None:
    """The journal's number of it, its size, and what is known of its draft."""
    one = logged(timed(record([3], [2], prefill=5), 0.006, number=1949, expected=Expected(900.0, np.array([2.5]))))
    attributes = round_attributes(one, one.rounds[0])
    assert (attributes["adaptspec.round"], attributes["adaptspec.rows"]) == (1949, 1)
    assert attributes["adaptspec.spec.expected_accepted_tokens"] == 2.5
    assert attributes["adaptspec.spec.confidence"] == pytest.approx(0.8)
    assert attributes["adaptspec.prefill_tokens"] == 5
    assert "adaptspec.spec.verified_nodes" not in attributes


def test_trees_have_their_nodes() -> None:
    one = logged(branching(SIBLING))
    attributes = round_attributes(one, one.rounds[0])
    assert (attributes["adaptspec.spec.drafted"], attributes["adaptspec.spec.verified_nodes"]) == (3, 5)
    assert decode_attributes(one)["adaptspec.spec.verified_nodes"] == 5
