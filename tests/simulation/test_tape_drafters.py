"""Simulated drafters follow the engine's: what is read when, what lags, where drafts end, what stop rules are shown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from adaptspec.decision_tables import StopTable
from adaptspec.simulation.cost_profiles import load_costs
from adaptspec.simulation.draft_view import UNRANKED, DraftView
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
