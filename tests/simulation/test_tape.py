"""Tapes: runs, selections and joins keep each request whole; what cannot be a tape is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.errors import TapeError
from adaptspec.simulation.tape import MAX_REACH, DraftView, Tape, join, recorded, run_lengths
from tests.policies.tapes import made_tape


@given(st.lists(st.booleans(), max_size=300))
def test_a_run_counts_the_agreements_until_the_first_miss(flags: list[bool]) -> None:
    runs = run_lengths(np.array(flags, dtype=np.bool_)).tolist()
    for start, run in enumerate(runs):
        ahead = flags[start:]
        assert run == min(MAX_REACH, next((i for i, flag in enumerate(ahead) if not flag), len(ahead)))


def test_runs_end_with_their_request() -> None:
    """Agreement at the start of the next request is no part of this one's runs."""
    always = DraftView.of_agreement(np.ones(4, dtype=np.bool_))
    tape = join([recorded(name, 5, 4, {"draft-model": always}) for name in "ab"])
    assert tape.views["draft-model"].run.tolist() == [4, 3, 2, 1, 4, 3, 2, 1]


def test_selecting_and_joining_keeps_requests_whole() -> None:
    """Taking a tape apart by task and joining the parts gives the same requests with the same positions."""
    tape = made_tape(beyond=3)
    parts = [tape.of_task(task) for task in dict.fromkeys(tape.tasks)]
    again = join(parts)
    assert again.ids == tape.ids
    assert again.offsets.tolist() == tape.offsets.tolist()
    for name, view in tape.views.items():
        np.testing.assert_array_equal(again.views[name].run, view.run)
        np.testing.assert_array_equal(again.views[name].confidence, view.confidence)
    last = tape.take([len(tape) - 1])
    np.testing.assert_array_equal(last.views["ngram"].reach, tape.views["ngram"].reach[-43:])


def test_wrong_drafts_keep_their_confidence() -> None:
    """The worst case looks as promising as the real thing, and nothing of it is right."""
    tape = made_tape()
    wrong = tape.always_wrong()
    for name, view in wrong.views.items():
        assert not view.agreed.any()
        np.testing.assert_array_equal(view.confidence, tape.views[name].confidence)
        np.testing.assert_array_equal(view.reach, tape.views[name].reach)


def test_rejection_is_drawn_from_its_chance_once_and_for_all() -> None:
    """Same seed, same draws; the share of agreement is the mean chance; a lookup agrees only where it proposes."""
    tape = made_tape({"code": 0.7}, count=20, length=200)
    drawn, again = tape.under_rejection(3), tape.under_rejection(3)
    view = drawn.views["draft-model"]
    np.testing.assert_array_equal(view.run, again.views["draft-model"].run)
    assert abs(view.agreed.mean() - view.rejection.mean()) < 0.02
    lookup = drawn.views["ngram"]
    assert not (lookup.agreed & ~lookup.proposes).any()
    assert (lookup.run <= lookup.reach).all()


def test_requests_are_found_by_task_and_temperature_or_the_error_names_what_there_is() -> None:
    tape = made_tape()
    assert len(tape.at_temperature(0.0)) == len(tape)
    with pytest.raises(TapeError, match="recorded were: 0"):
        tape.at_temperature(0.8)
    with pytest.raises(TapeError, match="code, json, rag"):
        tape.of_task("cooking")


@pytest.mark.parametrize(
    "broken",
    [
        {"ids": ("one",)},
        {"offsets": np.array([0, 5, 4, 60])},
        {"lengths": np.array([0, 40, 40])},
        {"lengths": np.array([41, 40, 40])},
        {"max_tokens": np.array([39, 40, 40])},
        {"views": {"draft-model": DraftView.of_agreement(np.ones(3, dtype=np.bool_))}},
        {"views": {"draft-model": DraftView.of_agreement(np.ones(120, dtype=np.bool_))}},
    ],
)
def test_what_does_not_fit_together_is_refused(broken: dict[str, object]) -> None:
    """Damaged or hand-made files must not turn into wrong figures: the last case lets a run leave its request."""
    tape: Tape = made_tape(count=1)
    with pytest.raises(TapeError):
        replace(tape, **broken)  # type: ignore[arg-type]
