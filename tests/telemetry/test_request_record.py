"""Stories: what each request went through, whoever ran beside it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptspec.telemetry.request_record import FACTS_KEPT, ROUNDS_KEPT, Fact, Stories, Story
from adaptspec.types import (
    Completion,
    Expected,
    FinishReason,
    Provenance,
    Reason,
    Request,
    RoundRecord,
    SpeculationStats,
    Timings,
)
from tests.control.helpers import record

DONE = Completion("", "", (), 1, FinishReason.STOP, SpeculationStats(), Timings(0.0, 0.0, 0.0, 1.0))


def begun(*names: str) -> Stories:
    stories = Stories(("draft-model", "ngram"))
    for name in names:
        stories.start(Request(name, (1,)))
    return stories


def rounds_of(names: tuple[str, ...], drafted: list[int], accepted: list[int]) -> RoundRecord:
    return replace(record(drafted, accepted), request_ids=names)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.sampled_from("abc"), unique=True, min_size=1), max_size=30))
def test_each_request_has_its_own_rounds(batches: list[list[str]]) -> None:
    """However batches change, rounds are counted where they belong."""
    stories = begun("a", "b", "c")
    for number, batch in enumerate(batches):
        stories.add(rounds_of(tuple(batch), [number] * len(batch), [0] * len(batch)), float(number))
    for name in "abc":
        story = stories.end(Request(name, (1,)), DONE)
        assert story.drafted == [number for number, batch in enumerate(batches) if name in batch]
        gone = sum(name in a and name not in b for a, b in itertools.pairwise(batches))
        assert sum(fact.name == "preempt" for fact in story.facts) == gone
    assert stories.running == []


def test_only_what_was_emitted_counts_as_accepted() -> None:
    """As in the answer: what lies behind the end earned nothing."""
    stories = begun("a")
    one = rounds_of(("a",), [5], [4])
    stories.add(replace(one, emitted=np.array([2])), 1.0)
    assert stories.running[0].accepted == [2]


def test_what_was_expected_is_summed_beside_what_came() -> None:
    """Over the rounds that said something."""
    stories = begun("a", "b")
    one = rounds_of(("a", "b"), [2, 2], [1, 2])
    stories.add(one, 1.0)
    stories.add(replace(one, expected=Expected(1000.0, np.array([1.5, np.nan]))), 2.0)
    first, second = stories.running
    assert first.expected_tokens == pytest.approx(1000.0 * one.total_seconds)
    assert (first.came_tokens, first.expected_accepted, second.expected_accepted) == (5, 1.5, 0.0)
    assert first.expected_seconds == pytest.approx(one.total_seconds)


def test_chances_are_kept_where_a_policy_explores() -> None:
    stories = begun("a")
    told = Provenance(np.array([3]), np.array([0.25]), np.array([0]), np.array([np.nan]))
    stories.add(replace(rounds_of(("a",), [2], [1]), provenance=told), 1.0)
    assert (stories.running[0].arms, stories.running[0].propensities) == ([3], [0.25])


def test_lists_are_bounded() -> None:
    """A request that runs for ever takes no more room than one of so many rounds."""
    stories = begun("a")
    for number in range(ROUNDS_KEPT + 5):
        stories.add(rounds_of(("a",), [number % 2], [0]), float(number))
    story = stories.running[0]
    assert (len(story.tiers), story.rounds, story.truncated) == (ROUNDS_KEPT, ROUNDS_KEPT + 5, True)
    assert len(story.facts) == FACTS_KEPT
    assert story.facts_dropped > 0
    assert story.reason_counts[int(Reason.POLICY)] == ROUNDS_KEPT + 5


def test_requests_whose_end_was_missed_do_not_pile_up() -> None:
    stories = begun(*map(str, range(5000)))
    assert len(stories.running) == 4096


def test_a_request_that_was_never_admitted_has_an_empty_story() -> None:
    story = begun().end(Request("x", (1,)), DONE)
    assert (story.rounds, story.completion) == (0, DONE)


def test_facts_beyond_the_bound_are_counted() -> None:
    story = Story(Request("x", (1,)))
    for number in range(FACTS_KEPT + 3):
        story.tell(Fact(float(number), "off", ""))
    assert (len(story.facts), story.facts_dropped) == (FACTS_KEPT, 3)
