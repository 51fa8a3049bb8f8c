"""Timelines: every round at its time and place, nested as viewers need it, with the journal's own sums."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.errors import JournalError
from adaptspec.journal import Entry, JournalHeader, LinesDropped, RequestFinished, RequestStarted
from adaptspec.telemetry.timeline import ENGINE, REQUESTS, Timeline, latest
from adaptspec.telemetry.trace_events import Event
from adaptspec.types import Expected, Provenance, RoundRecord
from tests.telemetry.logs import HEADER, JOURNALS, journal
from tests.trees import CHAIN, Grown, branching

SLACK = 2e-3  # microseconds: each end of a slice is rounded to a nanosecond


def drawn(entries: Sequence[Entry]) -> list[Event]:
    return list(Timeline().events(entries))


def tracks(events: Sequence[Event]) -> dict[tuple[int, int], list[Event]]:
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


def rounds_of(entries: Sequence[Entry]) -> list[RoundRecord]:
    return [entry for entry in entries if isinstance(entry, RoundRecord)]


@given(JOURNALS)
@settings(max_examples=40, deadline=None)
def test_slices_of_a_track_come_in_order_and_lie_within_each_other(entries: list[Entry]) -> None:
    """Viewers draw a slice that crosses the end of another at a wrong depth, or not at all."""
    for slices in tracks(drawn(entries)).values():
        around: list[float] = []
        before = 0.0
        for event in slices:
            start, end = event["ts"], event["ts"] + event["dur"]
            assert start >= before
            while around and around[-1] <= start + SLACK:
                around.pop()
            assert not around or end <= around[-1] + SLACK
            around.append(end)
            before = start


@given(JOURNALS)
@settings(max_examples=40, deadline=None)
def test_sums_are_those_of_the_journal(entries: list[Entry]) -> None:
    """Of a request the finish line counts the same; of the engine, the rounds' own seconds and tokens."""
    found = tracks(drawn(entries))
    rounds = rounds_of(entries)
    engine = found.pop((ENGINE, 10))
    whole = [event for event in engine if event["name"] == "round"]
    assert sum(event["args"]["emitted"] for event in whole) == sum(int(one.emitted.sum()) for one in rounds)
    for name, seconds in (
        ("round", [one.total_seconds for one in rounds]),
        ("draft", [one.draft_seconds for one in rounds]),
        ("verify", [one.verify_seconds for one in rounds]),
        ("host", [one.total_seconds - one.draft_seconds - one.verify_seconds for one in rounds]),
    ):
        took = sum(event["dur"] for event in engine if event["name"] == name)
        assert took == pytest.approx(1e6 * sum(seconds), abs=SLACK * len(rounds))
    finished = [entry for entry in entries if isinstance(entry, RequestFinished)]
    assert len(found) == len(finished)
    for slices in found.values():
        outer, rows = slices[0], [event["args"] for event in slices if "tier" in event.get("args", {})]
        told = outer["args"]
        assert len(rows) == told["rounds"]
        for name in ("drafted", "accepted"):
            assert sum(row[name] for row in rows) == told[name]
        assert 1 + sum(row["emitted"] for row in rows) == told["tokens"]  # the first comes from reading the prompt
        phases = [event["dur"] for event in slices if event["name"] in ("queue", "prefill", "decode")]
        assert sum(phases) == pytest.approx(outer["dur"], abs=SLACK)
    assert Counter(outer[0]["args"]["tokens"] for outer in found.values()) == Counter(one.tokens for one in finished)


def test_a_round_says_what_was_decided_and_why() -> None:
    """Reason, policy, drafter, what was expected, and by what chance."""
    made = replace(
        rounds_of(journal([(0, 1)], [4]))[0],
        provenance=Provenance(np.array([2]), np.array([0.25]), np.array([1]), np.array([1.5])),
        expected=Expected(812.5, np.array([1.75])),
        drafter=np.array([1]),
    )
    started = RequestStarted("r0", "goodput", "code", 4, 99, None, 0.0)
    events = drawn([HEADER, started, made])
    row = tracks(events)[REQUESTS, 11][0]
    assert row["name"] == "long 4"
    assert row["args"] == {
        **{"round": 0, "policy": "goodput", "reason": "policy", "tier": 4, "drafter": "ngram", "drafted": 4},
        **{"accepted": 2, "emitted": 3, "context": 100, "arm": 2, "propensity": 0.25, "expected_accepted": 1.75},
        **{"entropy": pytest.approx(0.8), "confidence": pytest.approx(0.8)},
    }
    assert "code goodput r0" in [event["args"].get("name") for event in events if event["ph"] == "M"]
    assert tracks(events)[ENGINE, 10][0]["args"]["expected_goodput"] == 812.5


def test_a_tree_says_its_nodes_who_proposed_them_and_the_path() -> None:
    union = Grown([-1, 0, -1, 2], 2, [2, 3], drafters=[0, 0, 1, 1])
    one = replace(branching(union, CHAIN), request_ids=("r0", "r1"), ended=6.0)
    wide, chain = (event["args"] for event in drawn([HEADER, one]) if event.get("args", {}).get("tier"))
    assert wide["nodes"] == 4
    assert wide["proposed"] == {"draft-model": 2, "ngram": 2}
    assert wide["path"] == [1, 1]
    assert not chain.keys() & {"nodes", "proposed", "path"}
    curves = {event["name"]: event["args"] for event in drawn([HEADER, one]) if event["ph"] == "C"}
    assert curves["nodes per draft"] == {"tokens": 3.0}
    assert curves["acceptance length"] == {"tokens": 2.5}


def test_tokens_beyond_the_end_were_not_accepted() -> None:
    """Verification kept two, of which an end token left one: the others are nobody's."""
    (made,) = rounds_of(journal([(0, 1)], [4]))
    events = drawn([HEADER, replace(made, accepted=np.array([2]), emitted=np.array([1]))])
    told = tracks(events)[REQUESTS, 11][0]["args"]
    assert (told["drafted"], told["accepted"], told["emitted"]) == (4, 1, 1)


def test_idle_time_is_seen() -> None:
    """Rounds lie where they were, not end to end."""
    one, two = rounds_of(journal([(0, 2)], [1]))
    late = replace(two, ended=one.ended + 10.0)
    events = drawn([HEADER, one, late])
    starts = [event["ts"] for event in tracks(events)[ENGINE, 10] if event["name"] == "round"]
    assert starts[1] - starts[0] == pytest.approx(1e7, rel=0.01)


def test_requests_whose_end_is_not_told_are_drawn_as_far_as_known() -> None:
    """Lines lost to a full disk, a server that was killed, and a journal that begins in the middle."""
    entries = journal([(0, 3)], [2])
    rounds, finish = rounds_of(entries), entries[-1]
    for cut in ([HEADER, *rounds], [HEADER, *rounds[:1], LinesDropped(4), *rounds[1:], finish]):
        slices = tracks(drawn(cut))[REQUESTS, 11]
        assert [event["name"] for event in slices] == ["short 2"] * 3


def test_a_second_process_goes_on_behind_the_first() -> None:
    """Its monotonic clock began anew: wall time puts both on one line, and a clock set back does not mix them."""
    first = journal([(0, 2)], [2], begin=500.0)
    for clock, gap in ((1e9 + 1000.0, 505.0), (1e9 - 1000.0, 0.0)):
        second = [replace(HEADER, clock=clock), *journal([(0, 2)], [2], begin=5.0)[1:]]
        events = drawn([*first, *second])
        whole = [event for event in tracks(events)[ENGINE, 10] if event["name"] == "round"]
        assert (whole[2]["ts"] - whole[1]["ts"] - whole[1]["dur"]) / 1e6 == pytest.approx(gap, abs=0.01)
        assert sorted(track for process, track in tracks(events) if process == REQUESTS) == [11, 12]


def test_only_the_requests_asked_for_have_a_track() -> None:
    """The engine's rounds and the curves stay whole."""
    entries = journal([(0, 4), (1, 4), (2, 4)], [2])
    timeline = Timeline(lambda name: name == "r1")
    found = tracks(list(timeline.events(entries)))
    assert (sorted(found), timeline.tracks, timeline.rounds) == ([(ENGINE, 10), (REQUESTS, 11)], 1, 6)


def test_an_id_that_comes_again_has_another_track() -> None:
    """Ids are unique among the running requests only; the first one's end was lost."""
    entries = journal([(0, 2)], [2])
    again = [entry for entry in journal([(0, 2)], [2], begin=6.0) if entry is not HEADER]
    found = tracks(drawn([*entries[:-1], *again]))
    assert [len(found[REQUESTS, track]) for track in (11, 12)] == [2, 6]


def test_rounds_without_a_time_are_refused() -> None:
    """A simulation's rounds happened at no time."""
    made = replace(rounds_of(journal([(0, 1)], [2]))[0], ended=float("nan"))
    with pytest.raises(JournalError, match="does not say when"):
        drawn([HEADER, made])


def test_depths_differ_in_colour_and_no_track_looks_special() -> None:
    """Viewers take colours from a name's words, and call a track with its process' number the main thread."""
    entries = journal([(0, 4)], [0, 1, 3, 9])
    found = tracks(drawn(entries))
    assert [event["name"] for event in found[REQUESTS, 11][-4:]] == ["off", "single 1", "short 3", "deep 9"]
    assert all(process != thread for process, thread in found)


@given(JOURNALS, st.floats(0.0, 0.2))
@settings(max_examples=40, deadline=None)
def test_what_is_kept_is_what_is_recent(entries: list[Entry], seconds: float) -> None:
    """Under its header, with the starts of those that ran then: without them their tracks had no policy."""
    times = [entry.ended for entry in entries if isinstance(entry, (RoundRecord, RequestFinished))]
    kept = list(latest(entries, seconds))
    assert kept[0] is HEADER
    recent = [entry for entry in kept if isinstance(entry, (RoundRecord, RequestFinished))]
    # Wall time is what is compared: of a billion seconds, doubles hold tenths of a microsecond.
    assert all(entry.ended >= max(times) - seconds - 1e-6 for entry in recent)
    assert len(recent) >= sum(time >= max(times) - seconds + 1e-6 for time in times)
    named = {name for entry in recent if isinstance(entry, RoundRecord) for name in entry.request_ids}
    assert named <= {entry.id for entry in kept if isinstance(entry, RequestStarted)}


def test_the_header_is_that_of_the_process_that_wrote_it() -> None:
    """A restart in the time that is left out."""
    later = replace(HEADER, clock=2e9)
    entries = [*journal([(0, 3)], [2]), later, *journal([(0, 3)], [2])[1:]]
    headers = [entry for entry in latest(entries, 0.0) if isinstance(entry, JournalHeader)]
    assert headers == [later]
