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
    assert draft.cache_gap(rows, np.array([101])) == [99]
    first, seconds = draft.propose(_job([3], [101], [1]))
    assert (first.counts.tolist(), first.steps, first.caught_up) == ([3], 3, 99)
    own = COSTS.drafters["draft-model"]
    steps = 3 * COSTS.step_seconds("draft-model", 1, 0.0)
    assert seconds == pytest.approx(own.start + steps + 99 * own.catch_up_per_token)
    draft.keep(rows, np.array([102]))  # one of three was kept
    assert draft.cache_gap(rows, np.array([110])) == [110 - 102 - 2]
    assert draft.propose(_job([2], [103], [3]))[0].caught_up == 0
    draft.keep(rows, np.array([105]))  # both were kept: the second has not been fed
    assert draft.cache_gap(rows, np.array([110])) == [110 - 104 - 2]


@pytest.mark.parametrize("floor", [0.0, 0.6])
def test_behind_a_wrong_token_it_is_as_sure_as_it_was_recorded(floor: float) -> None:
    """Up to its first wrong token the true text tells; behind it what was recorded there, as far as that goes.

    A stop rule is shown the same, and the token that it looks at stays submitted.
    """
    agreed = np.array([1, 1, 0, 1, 1, 1, 1, 1], dtype=np.bool_)
    unknown = np.full((8, 2), np.nan)
    unknown[2] = 0.55, 0.66
    view = DraftView.of_agreement(agreed, np.linspace(0.9, 0.1, 8), np.full(8, 0.5))
    view = replace(view, after_miss=AfterMiss(unknown, unknown))
    sure = [*view.confidence[1:3], 0.55, 0.66, view.confidence[5]]
    stop = StopTable(confidence=np.full((1, 1), floor))
    job = replace(_job([5], [9], [1], stop), last=np.array([7]))
    made, _ = TapeModel("draft-model", view, COSTS, 1, 512).propose(job)
    count = 3 if floor else 5
    assert made.counts.tolist() == [count]
    assert made.confidence[0, :count].tolist() == pytest.approx(sure[:count])
    assert made.entropy[0, :count].tolist() == pytest.approx([0.5, 0.5, 0.55, 0.66, 0.5][:count])


def test_long_prompts_are_read_in_pieces_first_come_first_served() -> None:
    """A row that has not caught up drafts nothing; two tokens are always read; steps are paid for all the same."""
    draft = TapeModel("draft-model", _view(), COSTS, 3, 100)
    one, _ = draft.propose(_job([2, 2, 2], [150, 80, 60], [1, 1, 1]))
    assert one.counts.tolist() == [0, 0, 0]
    assert one.steps == 0
    assert one.caught_up == 98
    assert draft.cache_gap(np.arange(3), np.array([150, 80, 60])) == [48, 76, 56]
    two, _ = draft.propose(_job([2, 0, 2], [151, 81, 61], [2, 2, 2]))
    assert two.counts.tolist() == [2, 0, 0], "51 are left of the first; the last has 59 to go and 49 to read"
    assert two.caught_up == 49 + 47
    assert draft.propose(_job([0, 0, 2], [154, 82, 62], [5, 3, 3]))[0].counts.tolist() == [0, 0, 2]


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
