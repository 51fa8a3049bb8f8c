"""Stop rules: who drafts on, and that the quick path for one row says what the joint one says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.choosers.chooser import Choice, Outlook
from adaptspec.control.policy import RoundStop
from adaptspec.control.signals import Calibration
from adaptspec.control.stopping import (
    ConfidenceStop,
    EntropyStop,
    MarginalGoodputStop,
    NoStop,
    SplitStop,
    StopPart,
    stop_by_task,
)
from tests.control.helpers import record


def choice(
    rows: int, goodput: float = 800.0, acceptance: float = 0.8, token: float = 1e-4, step: float = 2e-4
) -> Choice:
    verify = 1e-3 + token * np.arange(rows * 7 + 1)
    outlook = Outlook(goodput, np.full((rows, 7), acceptance), step, 0.0, verify)
    return Choice(np.full(rows, 7), np.zeros(rows, dtype=np.int64), outlook)


def ask(
    stop: RoundStop | None, confidence: list[float], step: int = 1, entropy: list[float] | None = None
) -> list[bool]:
    assert stop is not None
    sure = np.array(confidence)
    return stop(step, np.arange(len(sure)), sure, sure if entropy is None else np.array(entropy)).tolist()


def test_no_stop_is_none() -> None:
    assert NoStop().begin(choice(1)) is None


def test_confidence_and_entropy_thresholds() -> None:
    assert ask(ConfidenceStop(0.5).begin(choice(3)), [0.4, 0.6, float("nan")]) == [False, True, True]
    assert ask(EntropyStop(1.0).begin(choice(2)), [0.0, 0.0], entropy=[0.5, 1.5]) == [True, False]


def test_marginal_goodput_follows_confidence() -> None:
    rule = MarginalGoodputStop(Calibration())
    assert ask(rule.begin(choice(1)), [0.95]) == [True]
    assert ask(rule.begin(choice(1)), [0.05]) == [False]


def test_marginal_goodput_survival_multiplies_over_steps() -> None:
    """Each token looks good enough alone; together they are not."""
    rule = MarginalGoodputStop(Calibration())
    stop = rule.begin(choice(1))
    answers = [ask(stop, [0.75], step)[0] for step in range(1, 7)]
    assert answers[0]
    assert not answers[-1]
    assert answers == sorted(answers, reverse=True)


def test_marginal_goodput_never_goes_on_where_time_costs_more_than_a_token_is_worth() -> None:
    rule = MarginalGoodputStop(Calibration())
    assert ask(rule.begin(choice(1, goodput=4000.0)), [0.99]) == [False]


def test_a_step_is_shared_by_the_rows_that_take_it() -> None:
    """Alone, the step costs more than the row gains; four rows together pay for it."""
    rule = MarginalGoodputStop(Calibration())
    dear = {"goodput": 1000.0, "step": 9e-4}
    assert ask(rule.begin(choice(1, **dear)), [0.95]) == [False]
    assert ask(rule.begin(choice(4, **dear)), [0.95] * 4) == [True] * 4
    assert ask(rule.begin(choice(4, **dear)), [0.95, 0.95, 0.95, 0.02]) == [True, True, True, False]


def test_without_confidence_the_record_of_the_row_decides() -> None:
    rule = MarginalGoodputStop(Calibration())
    assert ask(rule.begin(choice(1)), [float("nan")]) == [True]
    assert ask(rule.begin(choice(1, acceptance=0.1)), [float("nan")]) == [False]


def test_without_an_outlook_it_stops_nothing() -> None:
    assert MarginalGoodputStop(Calibration()).begin(Choice(np.array([3]), np.array([0]))) is None


@given(
    sure=st.floats(0.0, 1.0),
    goodput=st.floats(100.0, 3000.0),
    acceptance=st.floats(0.05, 0.99),
)
def test_one_row_decides_alone_as_it_does_beside_a_hopeless_row(sure: float, goodput: float, acceptance: float) -> None:
    """The single-row path and the joint path are one rule (at equal token prices)."""
    rule = MarginalGoodputStop(Calibration())
    alone = ask(rule.begin(choice(1, goodput, acceptance)), [sure])
    joint = ask(rule.begin(choice(2, goodput, acceptance)), [sure, 0.0])
    if joint != [True, True]:
        assert joint[0] == alone[0]


def test_a_step_in_the_cost_curve_is_no_wall() -> None:
    """Where the fourth token is dear and the next ones free, sure drafts go on."""
    verify = np.array([1.0, 1.0, 1.0, 1.9, 1.9, 1.9, 1.9, 1.9]) * 1e-3
    outlook = Outlook(1000.0, np.full((1, 7), 0.98), 1e-5, 0.0, verify)
    stop = MarginalGoodputStop(Calibration()).begin(Choice(np.array([7]), np.array([0]), outlook))
    assert [ask(stop, [0.99], step)[0] for step in (1, 2, 3)] == [True, True, True]


def test_split_asks_each_part_about_its_own_rows() -> None:
    strict, loose = ConfidenceStop(0.9), ConfidenceStop(0.1)
    split = SplitStop(
        [StopPart(np.array([0, 2]), strict), StopPart(np.array([1]), loose), StopPart(np.array([3]), None)], 4
    )
    assert ask(split, [0.5, 0.5, 0.95, 0.0]) == [False, True, True, True]
    some = split(2, np.array([1, 2]), np.array([0.05, 0.5]), np.zeros(2))
    assert some.tolist() == [False, False]


def test_tasks_have_stops_of_their_own() -> None:
    tasks = np.array([1, 0, 2])
    stop = stop_by_task({1: ConfidenceStop(0.9)}, ConfidenceStop(0.3), tasks)
    assert ask(stop, [0.5, 0.5, 0.2]) == [False, True, False]
    assert stop_by_task({7: ConfidenceStop(0.9)}, None, tasks) is None


@pytest.mark.parametrize("rule", [NoStop(), ConfidenceStop(0.5), EntropyStop(1.0), MarginalGoodputStop(Calibration())])
def test_rules_take_note_of_rounds(rule: NoStop) -> None:
    rule.learn(record([2], [1]))
