"""The store: every request keeps what is its own, whoever runs beside it, and nobody waits for it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from adaptspec.drafting.lookup import LookupDrafter
from adaptspec.request import Request, SamplingParams
from adaptspec.results import Completion, FinishReason, SpeculationStats, Timings
from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.request_record import RequestRecord
from adaptspec.telemetry.request_store import (
    Batch,
    Finished,
    RequestStore,
    row_count,
)
from tests.control.helpers import record
from tests.engine.conftest import Dictated, make_core
from tests.fakes import TableRunner
from tests.telemetry.feeding import made

DONE = Completion("", "", (), 1, FinishReason.STOP, SpeculationStats(), Timings(0.0, 0.0, 0.0, 1.0))


class Kept:
    """A reader that keeps what it is told."""

    def __init__(self, store: RequestStore) -> None:
        self.batches: list[Batch] = []
        store.writes(self.batches.append)
        store.detailed = True

    @property
    def ended(self) -> dict[str, RequestRecord]:
        events = (event for batch in self.batches for event in batch.events)
        return {event.record.request.id: event.record for event in events if isinstance(event, Finished)}


def rounds_of(names: tuple[str, ...], drafted: list[int]) -> RoundRecord:
    return replace(record(drafted, [0] * len(drafted)), request_ids=names)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.sampled_from("abc"), unique=True, min_size=1), max_size=30), st.integers(1, 7))
def test_each_request_has_its_own_rounds(batches: list[list[str]], every: int) -> None:
    """However the engine's batches change and entries are cut into ours, rounds are counted where they belong."""
    store, kept = made(Kept)
    for name in "abc":
        store.started(Request(name, (1,)))
    for number, batch in enumerate(batches):
        store.emit(rounds_of(tuple(batch), [number] * len(batch)))
        if number % every == 0:
            store.settle()
    for name in "abc":
        store.finished(Request(name, (1,)), DONE)
    store.settle()
    for name in "abc":
        history = kept.ended[name].history
        assert list(history.columns["drafted"]) == [number for number, batch in enumerate(batches) if name in batch]
        gone = sum(name in a and name not in b for a, b in itertools.pairwise(batches))
        assert sum(event.name == "preempt" for event in history.events) == gone
        assert kept.ended[name].tokens == history.sums.rounds
    assert store.running == {}


def test_the_oldest_request_gives_its_place_where_an_end_was_missed() -> None:
    """Else requests pile up, or those that come later find no place and none of their rounds are counted."""
    store, _ = made(Kept, rows=1)
    places = row_count(1) - 1
    for number in range(2000):
        store.started(Request(str(number), (1,)))
    store.settle()
    assert list(store.running) == [str(number) for number in range(2000 - places, 2000)]
    assert sorted(one.row for one in store.running.values()) == list(range(places))


def test_a_full_queue_loses_rounds_before_requests_and_says_so() -> None:
    store = RequestStore(limit=100, pause=60.0)
    kept = Kept(store)
    for _ in range(120):
        store.emit(record([1], [1]))
    store.finished(Request("x", (1,)), DONE)
    store.start(1)
    store.settle()
    assert store.missed_rounds == 30
    assert (len(kept.batches[0].rounds), kept.batches[0].dropped) == (90, 30)
    assert "x" in kept.ended
    store.close()


def test_a_reader_that_fails_harms_no_other(caplog: Any) -> None:
    def broken(_: Batch) -> None:
        raise ValueError("a fuse has blown")

    store, kept = made(Kept)
    store.counts(broken)
    store.emit(record([1], [1]))
    store.settle()
    assert store.missing(broken) == 1
    assert store.totals.rounds == len(kept.batches) == 1
    assert "a fuse has blown" in caplog.text


def test_it_follows_requests_while_they_run(tokenizer: PreTrainedTokenizerFast) -> None:
    """The last decisions with their reasons, and no text."""
    store = RequestStore(pause=60.0)
    store.start(4)
    policy = Dictated(("ngram",), lambda n, size: [2] * size)
    core = make_core(tokenizer, TableRunner(), [LookupDrafter(24)], {"p": (policy, "coupled")}, sinks=[store])
    core.add(Request("r", (5, 6, 7), SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)))
    for _ in range(8):
        core.step()
    (card,) = store.requests(["ngram"])
    assert (card["id"], card["policy"], card["prompt_tokens"], card["max_tokens"]) == ("r", "p", 3, 20)
    assert [one["round"] for one in card["rounds"]][-4:] == [5, 6, 7, 8]
    assert all(one["reason"] == "fixed" and one["drafter"] == "ngram" for one in card["rounds"])
    while not core.idle:
        core.step()
    assert store.requests(["ngram"]) == []
    store.close()
