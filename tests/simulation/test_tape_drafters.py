"""Simulated drafters follow the engine's: what is read when, what lags, where drafts end, what stop rules are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from adaptspec.decision_tables import StopTable
from adaptspec.simulation.cost_profiles import load_costs
from adaptspec.simulation.draft_view import UNRANKED, AfterMiss, DraftView
from adaptspec.simulation.tape_drafters import TapeModel, TapeModelFree
from adaptspec.simulation.tape_trees import TapeJob

COSTS = load_costs("cpu-2-cores")


def _view(size: int = 40) -> DraftView:
    return DraftView.of_agreement(np.ones(size, dtype=np.bool_), np.linspace(0.9, 0.1, size), np.full(size, 0.5))


def _job(depths: Sequence[int], context: Sequence[int], at: Sequence[int], stop: StopTable | None = None) -> TapeJob:
    rows = len(depths)
    return TapeJob(
        np.arange(rows),
        np.array(depths),
        np.array(context),
        np.array(at),
        np.full(rows, 39),
        np.full(rows, 39),
        stop,
    )


def test_the_first_draft_reads_the_prompt_and_later_ones_what_was_missed() -> None:
    """One or two tokens are the usual share; a rejected token rolls the cache back, off rounds let it fall behind."""
    draft = TapeModel("draft-model", _view(), COSTS, 1, 512)
    rows = np.array([0])
    cache_gap = draft.cache_gap(rows, np.array([101]))
    assert cache_gap == [99]
    first, seconds = draft.propose(_job([3], [101], [1]))
    assert (first.counts.tolist(), first.steps, first.caught_up) == ([3], 3, 99)
    own = COSTS.drafters["draft-model"]
    steps = 3 * COSTS.step_seconds("draft-model", 1, 0.0)
    assert seconds == pytest.approx(own.start + steps + 99 * own.catch_up_per_token)
    draft.keep(rows, np.array([102]))  # one of three was kept
    assert draft.propose(_job([2], [103], [3]))[0].caught_up == 0
    draft.keep(rows, np.array([105]))  # both were kept: the second has not been fed
    assert draft.cache_gap(rows, np.array([110])) == [110 - 104 - 2]
    draft.free(0)
    assert draft.cache_gap(rows, np.array([50])) == [48]


def test_long_prompts_are_read_in_pieces_first_come_first_served() -> None:
    """A row that has not caught up drafts nothing; two tokens are always read; steps are paid for all the same."""
    draft = TapeModel("draft-model", _view(), COSTS, 3, 100)
    one, _ = draft.propose(_job([2, 2, 2], [150, 80, 60], [1, 1, 1]))
    assert one.counts.tolist() == [0, 0, 0]
    assert one.steps == 0
    assert one.caught_up == 98
    two, _ = draft.propose(_job([2, 0, 2], [151, 81, 61], [2, 2, 2]))
    assert two.counts.tolist() == [2, 0, 0], "51 are left of the first; the last has 59 to go and 49 to read"
    assert two.caught_up == 49 + 47
    assert draft.propose(_job([0, 0, 2], [154, 82, 62], [5, 3, 3]))[0].counts.tolist() == [0, 0, 2]


def test_a_stop_table_is_asked_after_every_token_with_what_the_tape_says_of_it() -> None:
    """The token looked at stays submitted; rows are those of the batch, and one alone is judged alike."""
    view = _view()
    sure = view.confidence
    floors = np.array([[sure[4], sure[5] + 1e-9, 0.0], [sure[5] + 1e-9, 0.0, 0.0], [0.0, 0.0, 0.0]])
    stop = StopTable(confidence=floors)
    made, _ = TapeModel("draft-model", view, COSTS, 3, 512).propose(_job([3, 3, 1], [10, 10, 10], [4, 5, 6], stop))
    assert made.counts.tolist() == [2, 1, 1]
    np.testing.assert_allclose(made.confidence[0, :2], sure[4:6])
    assert np.isnan(made.confidence[1:, 1:]).all()
    alone, _ = TapeModel("draft-model", view, COSTS, 3, 512).propose(_job([3, 0, 0], [10, 10, 10], [4, 5, 6], stop))
    assert alone.counts.tolist() == [2, 0, 0]


def test_drafting_all_at_once_is_drafting_step_by_step() -> None:
    """Without a stop rule the steps are worked out together: same counts, confidences, steps and seconds."""
    for machine in ("cpu-2-cores", "gpu-8b"):
        made = []
        for stop in (None, StopTable()):
            draft = TapeModel("draft-model", _view(), load_costs(machine), 4, 512)
            made.append(draft.propose(_job([3, 0, 7, 1], [12, 15, 20, 9], [4, 5, 36, 2], stop)))
        (whole, seconds), (single, others) = made
        assert whole.counts.tolist() == single.counts.tolist() == [3, 0, 7, 1]
        assert whole.steps == single.steps == 7
        assert seconds == pytest.approx(others)
        np.testing.assert_array_equal(whole.confidence, single.confidence)


def test_behind_a_wrong_token_it_is_as_sure_as_it_was_recorded() -> None:
    """Up to its first wrong token the true text tells; behind it what was recorded there, as far as that goes."""
    agreed = np.array([1, 1, 0, 1, 1, 1, 1, 1], dtype=np.bool_)
    unknown = np.full((8, 2), np.nan)
    unknown[2] = 0.55, 0.66
    view = DraftView.of_agreement(agreed, np.linspace(0.9, 0.1, 8), np.full(8, 0.5))
    view = replace(view, after_miss=AfterMiss(unknown, unknown))
    wanted = [*view.confidence[1:3], 0.55, 0.66, view.confidence[5]]
    for stop in (None, StopTable()):
        job = replace(_job([5], [9], [1], stop), last=np.array([7]))
        made, _ = TapeModel("draft-model", view, COSTS, 1, 512).propose(job)
        assert made.confidence[0].tolist() == pytest.approx(wanted)
        assert made.entropy[0].tolist() == pytest.approx([0.5, 0.5, 0.55, 0.66, 0.5])


def test_n_grams_end_where_nothing_is_found_and_ask_nobody() -> None:
    strict = StopTable(confidence=np.full((3, 1), 2.0), entropy=np.full((3, 1), -1.0))
    reach = np.array([0, 2, 9])
    unknown = np.full(3, np.nan)
    view = DraftView(np.array([0, 1, 1]), reach, np.array([UNRANKED, 0, 0]), unknown, unknown, unknown)
    ngram = TapeModelFree(view, COSTS.drafters["ngram"].per_row)
    made, seconds = ngram.propose(_job([3, 3, 3], [10, 11, 12], [0, 1, 2], strict))
    assert made.counts.tolist() == [0, 2, 3]
    assert (made.steps, made.caught_up) == (0, 0)
    assert seconds == pytest.approx(3e-5)
    assert ngram.cache_gap(np.arange(3), np.array([10, 11, 12])) == [0, 0, 0]
