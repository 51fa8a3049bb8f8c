"""Features of requests: task, batch size and lengths from signals, and what drafts of the running request showed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaptspec.control.algorithms.request_features import RequestFeatures
from adaptspec.control.tasks import TASKS
from adaptspec.rounds import RoundRecord
from tests.control.helpers import record, signals

RUNNING = np.ones(2, dtype=np.bool_)
ENTROPY, LENGTH = -4, -1


def drafting(accepted: list[int], entropy: float) -> RoundRecord:
    """A round in which two rows draft three tokens."""
    return replace(record([3, 3], accepted), entropy=np.full((2, 3), entropy))


def features(known: RequestFeatures, tasks: list[int] | None = None, shares: np.ndarray | None = None) -> np.ndarray:
    return known.of_contexts(signals([7, 7], tasks=tasks), np.eye(2) if shares is None else shares)


def test_names_of_users_share_the_feature_of_unknown_tasks() -> None:
    known = RequestFeatures(4, tasks=40)
    assert known.tasks == 1 + len(TASKS)
    found = features(known, tasks=[3, 30])
    assert np.flatnonzero(found[0, : known.tasks]).tolist() == [3]
    assert np.flatnonzero(found[1, : known.tasks]).tolist() == [0]


def test_features_of_a_context_are_the_weighted_mean_of_its_rows() -> None:
    known = RequestFeatures(4, tasks=3)
    found = features(known, tasks=[1, 2], shares=np.array([[0.25, 0.75]]))
    assert found.shape == (1, known.count)
    assert found[0, :3].tolist() == [0.0, 0.25, 0.75]


def test_drafts_show_entropy_and_acceptance_length() -> None:
    known = RequestFeatures(4, tasks=2)
    for _ in range(40):
        known.learn(drafting([3, 1], entropy=2.0), RUNNING)
    found = features(known)
    assert found[:, ENTROPY].tolist() == [0.5, 0.5]
    assert found[:, LENGTH] == pytest.approx([3 / 8, 1 / 8], abs=1e-3)


def test_a_request_knows_nothing_of_the_last_one_in_its_row() -> None:
    """Not even of a round of it that is recorded after the new one has started."""
    known = RequestFeatures(4, tasks=2)
    known.learn(drafting([3, 3], entropy=2.0), RUNNING)
    known.start(0)
    known.learn(drafting([3, 3], entropy=1.0), np.array([False, True]))
    found = features(known)
    assert found[0, [ENTROPY, LENGTH]].tolist() == [0.0, 0.0]
    assert found[1, ENTROPY] == 0.25


def test_rounds_without_drafts_or_entropies_change_nothing() -> None:
    known = RequestFeatures(4, tasks=2)
    before = features(known)
    known.learn(record([0, 0], [0, 0]), RUNNING)
    known.learn(drafting([3, 3], entropy=np.nan), RUNNING)
    np.testing.assert_array_equal(features(known), before)
