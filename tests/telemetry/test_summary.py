"""Figures and sentences: the same numbers everywhere, in plain words."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from adaptspec.decision import Expected, Reason
from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.requests import LoggedRequest, RequestLog
from adaptspec.telemetry.summary import Window, sentence, summarize, why
from adaptspec.telemetry.sums import RoundSums
from tests.control.helpers import record, table
from tests.telemetry.rounds import completion, request, round_of, started_stream

DRAFTING = (3, 3, 2, 3, Reason.POLICY)
OFF = (0, 0, 0, 1, Reason.OFF)


def off_at(goodput: float, other: float) -> RoundRecord:
    return replace(round_of([OFF], names=("a",)), expected=Expected(goodput, np.array([0.0]), other))


def logged(*records: RoundRecord, ended: bool = False) -> LoggedRequest:
    log = RequestLog()
    stream = started_stream(log)
    stream.started(request("a"))
    for one in records:
        stream.emit(one)
    if ended:
        stream.finished(request("a"), completion("a"))
    stream.flush()
    found = log.find("a")
    assert found is not None
    return found


def test_figures_are_of_the_whole_window() -> None:
    records = [round_of([DRAFTING, OFF]), round_of([OFF])]
    task = RoundSums.of(records[1:])
    first, second = Window(RoundSums.of(records[:1]), finished=1), Window(RoundSums.of(records[1:]), {"code": task})
    figures = summarize([first, second], None, ("draft-model",))
    assert figures is not None
    assert (figures["rounds"], figures["rows"], figures["emitted"], figures["busy"]) == (2, 3, 5, 2.0)
    assert (figures["tokens_per_second"], figures["speedup"], figures["plain_tokens_per_second"]) == (2.5, None, None)
    assert (figures["drafted_share"], figures["tokens_per_pass"]) == (0.3333, 1.6667)
    assert (figures["acceptance_rate"], figures["acceptance_length"]) == (0.6667, 3.0)
    assert figures["depths"] == {"0": 0.6667, "3": 0.3333}
    assert figures["reasons"] == {"policy": 0.3333, "off": 0.6667}
    assert figures["drafters"]["draft-model"]["acceptance_rate"] == 0.6667
    assert figures["tasks"]["code"]["rows"] == 1
    assert figures["tasks"]["code"]["acceptance_rate"] is None
    assert figures["finished"] == 1
    json.dumps(figures, allow_nan=False)


def test_no_rounds_have_no_figures() -> None:
    assert summarize([], None, ()) is None
    assert summarize([Window(finished=1)], None, ()) is None


def test_nothing_drafted_is_as_fast_as_plain_decoding() -> None:
    costs = table()
    figures = summarize([Window(RoundSums.of([record([0], [0])] * 5, costs))], costs, ())
    assert figures is not None
    assert figures["speedup"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert figures["plain_tokens_per_second"] == figures["tokens_per_second"]


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ([], "no rounds yet"),
        ([round_of([DRAFTING])], "100 % of rounds drafted, 3.0 tokens a pass"),
        (
            [round_of([DRAFTING]), off_at(14.0, 10.0)],
            "50 % of rounds drafted, 2.0 tokens a pass; the rest off: drafting was expected to cost 1.4 x plain",
        ),
        ([round_of([(0, 0, 0, 1, Reason.FIXED)])], "no round drafted: the policy does not draft"),
        ([off_at(10.0, 10.0)], "no round drafted: drafting was expected to lose"),
        ([round_of([(3, 0, 0, 1, Reason.POLICY)])], "no round drafted: the drafters found nothing to propose"),
        (
            [round_of([(0, 0, 0, 1, Reason.REQUEST)] * 2 + [OFF])],
            "no round drafted: the request's own max_depth (2 of 3)",
        ),
    ],
)
def test_a_sentence_says_why(rounds: list[RoundRecord], words: str) -> None:
    assert why(RoundSums.of(rounds)) == words


def test_a_request_in_one_sentence() -> None:
    drafted = round_of([DRAFTING], names=("a",))
    assert sentence(logged()).startswith("No decoding rounds")
    assert sentence(logged(off_at(14.0, 10.0))) == (
        "2 tokens in 2 passes. No round drafted: drafting was expected to cost 1.4 x plain."
    )
    assert sentence(logged(drafted, drafted, off_at(14.0, 10.0))) == (
        "8 tokens in 4 passes (4 saved). 2 of 3 rounds drafted, most often 0 at depth 3: "
        "4 of 6 drafted tokens accepted. The rest off: drafting was expected to cost 1.4 x plain."
    )
