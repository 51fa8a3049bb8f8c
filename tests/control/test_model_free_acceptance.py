"""Estimates of model-free drafters, which learn from rounds in which they drafted and from those that scored them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adaptspec.arrays import FloatArray
from adaptspec.control.model_free_acceptance import LookupAcceptance, RunAcceptance, StatedAcceptance
from adaptspec.control.policy import BatchSignals
from adaptspec.rounds import RoundRecord
from tests.control import helpers

_DEPTH = 3
_LOOKUP = 1  # the number of the drafter; the first one runs a model


def _signals(*stated: float, row: int = 0) -> BatchSignals:
    signals = helpers.signals([7], rows=[row], found=[len(stated)])
    return replace(signals, stated=np.array([[[np.nan] * len(stated)], [list(stated)]]))


def _scored(stated: float, found: int, accepted: int, row: int = 0) -> RoundRecord:
    """A round of the first drafter, in which the lookup was scored."""
    record = helpers.record([2], [2], rows=[row])
    scores = {"shadow": np.array([[-1], [accepted]]), "shadow_drafted": np.array([[-1], [found]])}
    return replace(record, **scores, stated=np.array([[[np.nan] * 7], [[stated] * 7]]))  # type: ignore[arg-type]


def _expected(known: StatedAcceptance, *stated: float, row: int = 0) -> FloatArray:
    """Tokens expected of 0 ... 3 of those found."""
    return np.asarray(known.expected_tokens(_LOOKUP, _signals(*stated, row=row))[0])


def _observe(known: StatedAcceptance | RunAcceptance, record: RoundRecord, *, ended: bool = False) -> None:
    running = np.full(len(record.rows), not ended)
    known.observe(_LOOKUP, replace(record, running=running))
    known.settle()


def test_more_confident_tokens_are_expected_to_be_accepted_further() -> None:
    known = StatedAcceptance(2, 1, _DEPTH)
    high, low = _expected(known, 0.9, 0.9, 0.9), _expected(known, 0.1, 0.1, 0.1)
    assert high[0] == low[0] == 0.0
    assert (high[1:] > low[1:]).all()
    assert (np.diff(high) > 0.0).all()


def test_nothing_is_expected_beyond_the_tokens_found_or_without_a_confidence() -> None:
    known = StatedAcceptance(2, 1, _DEPTH)
    short = _expected(known, 0.9)
    assert short[1] == short[2] == short[3] > 0.0
    assert not known.expected_tokens(_LOOKUP, replace(_signals(0.9), stated=None)).any()
    assert not known.expected_tokens(0, _signals(0.9)).any()  # the first drafter states nothing


def test_confidences_are_calibrated_though_another_drafter_ran() -> None:
    known = StatedAcceptance(2, 1, _DEPTH)
    before = _expected(known, 0.9)[1]
    for _ in range(64):
        _observe(known, _scored(0.9, 2, 0))
    assert _expected(known, 0.9)[1] < 0.5 * before
    for _ in range(64):
        _observe(known, _scored(0.25, 2, 2))
    assert _expected(known, 0.25)[1] > _expected(known, 0.9)[1]


def test_late_rounds_of_a_request_do_not_count_for_the_next_one_in_its_row() -> None:
    known = StatedAcceptance(2, 1, _DEPTH)
    known.observe(_LOOKUP, _scored(0.9, 2, 0))
    known.start(0)
    known.settle()
    _observe(known, _scored(0.9, 2, 0), ended=True)
    np.testing.assert_allclose(_expected(known, 0.9), _expected(known, 0.9, row=1))


def _ngrams(drafted: list[int], accepted: list[int], tasks: list[int] | None = None) -> RoundRecord:
    """A round in which n-grams did not draft and were scored; -1: they were not scored."""
    size = len(drafted)
    scores = {"shadow": np.array([[0] * size, accepted]), "shadow_drafted": np.array([[0] * size, drafted])}
    return replace(helpers.record([0] * size, [0] * size, tasks=tasks), **scores)  # type: ignore[arg-type]


def _expected_ngrams(known: RunAcceptance, tasks: list[int]) -> FloatArray:
    """Tokens expected of drafts of 0 ... tokens in rows 0, 1 ..."""
    return known.expected_tokens(_LOOKUP, helpers.signals([7] * len(tasks), tasks=tasks))


def test_ngrams_that_were_right_are_trusted_further() -> None:
    """Text that repeats other text does so in runs. A round without a score ends a run: it may have ended."""
    known = RunAcceptance(2, 1, 4)
    for _ in range(4):
        _observe(known, _ngrams([4, 4], [4, 0]))
    in_a_run, after_a_miss = _expected_ngrams(known, [0, 0])
    assert in_a_run[4] > after_a_miss[4] + 0.5
    _observe(known, _ngrams([-1, -1], [-1, -1]))
    unknown, _ = _expected_ngrams(known, [0, 0])
    assert unknown[4] < in_a_run[4] - 0.5


def test_a_run_ends_with_its_request() -> None:
    """Also where the last round of the request is recorded once the next one has the row."""
    known = RunAcceptance(1, 1, 4)
    new = _expected_ngrams(known, [0])
    known.observe(_LOOKUP, _ngrams([4], [4]))
    known.start(0)
    known.observe(_LOOKUP, replace(_ngrams([4], [4]), running=np.array([False])))
    np.testing.assert_allclose(_expected_ngrams(known, [0]), new)


def test_ngrams_are_estimated_by_task() -> None:
    known = RunAcceptance(2, 3, 4)
    for _ in range(200):
        _observe(known, _ngrams([2, 2], [0, 1], [1, 2]))
    never, once = _expected_ngrams(known, [1, 2])
    assert never[1] < 0.2
    assert once[1] > 0.8
    restored = RunAcceptance(2, 3, 4)
    restored.restore(known.learned())
    np.testing.assert_allclose(_expected_ngrams(restored, [1, 2]), [never, once])


def test_confidences_decide_where_they_are_stated_and_runs_where_not() -> None:
    """A drafter of another engine, or on an old tape, may state none."""
    known = LookupAcceptance(2, 1, _DEPTH)
    unstated = replace(_signals(0.9), stated=None)
    before = known.expected_tokens(_LOOKUP, unstated)
    for _ in range(64):
        known.observe(_LOOKUP, _scored(0.9, 2, 0))
        known.settle()
    assert known.expected_tokens(_LOOKUP, _signals(0.9))[0, 1] < 0.5
    np.testing.assert_allclose(known.expected_tokens(_LOOKUP, unstated), before)
    for _ in range(64):
        known.observe(_LOOKUP, _ngrams([2], [0]))
        known.settle()
    assert known.expected_tokens(_LOOKUP, unstated)[0, 1] < 0.5 * before[0, 1]
    restored = LookupAcceptance(2, 1, _DEPTH)
    restored.restore(known.learned())
    for signals in (unstated, _signals(0.9)):
        np.testing.assert_allclose(restored.expected_tokens(_LOOKUP, signals), known.expected_tokens(_LOOKUP, signals))
