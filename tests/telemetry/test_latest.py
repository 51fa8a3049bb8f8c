"""The end of a journal: exactly what happened in its last seconds, and who ran then."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.records import Entry, JournalHeader, RequestFinished, RequestStarted
from adaptspec.telemetry.latest import latest
from adaptspec.types import RoundRecord
from tests.telemetry.logs import HEADER, JOURNALS, journal


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
