"""The ratio rule: who drafts on, and that the quick path for one row says what the joint one says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adaptspec.control.calibration import Calibration
from adaptspec.control.choosers.chooser import Choice, Outlook
from adaptspec.control.stopping.marginal import MarginalGoodputStop
from tests.control.helpers import record
from tests.control.stopping.asking import ask


def choice(
    rows: int, goodput: float = 800.0, acceptance: float = 0.8, token: float = 1e-4, step: float = 2e-4
) -> Choice:
    verify = 1e-3 + token * np.arange(rows * 7.0 + 1.0)
    outlook = Outlook(goodput, np.full((rows, 7), acceptance), step, 0.0, verify)
    return Choice(np.full(rows, 7), np.zeros(rows, dtype=np.int64), outlook)


def test_marginal_goodput_follows_confidence() -> None:
    rule = MarginalGoodputStop(Calibration())
    assert ask(rule.begin(choice(1, goodput=1200.0)), [0.95]) == [True]
    assert ask(rule.begin(choice(1, goodput=1200.0)), [0.05]) == [False]


def test_marginal_goodput_follows_the_row() -> None:
    """The same confidence, in a row that is rejected more often than it should be, and in one less often."""
    rule = MarginalGoodputStop(Calibration())
    both = choice(2, goodput=1200.0, token=4e-4, step=1e-5)
    assert both.outlook is not None
    asked = replace(both, outlook=replace(both.outlook, factors=np.array([2.0, 0.5])))
    assert ask(rule.begin(asked), [0.5, 0.5]) == [False, True]


def test_marginal_goodput_survival_multiplies_over_steps() -> None:
    """Each token looks good enough alone; together they are not."""
    rule = MarginalGoodputStop(Calibration())
    stop = rule.begin(choice(1))
    answers = [ask(stop, [0.65], step)[0] for step in range(1, 7)]
    assert answers[0]
    assert not answers[-1]
    assert answers == sorted(answers, reverse=True)


def test_a_choice_that_stands_begins_every_round_anew() -> None:
    """It has the same stop in all of them, which must not remember what an earlier round drafted."""
    rule, stands = MarginalGoodputStop(Calibration()), choice(1)
    stop = rule.begin(stands)
    assert rule.begin(stands) is stop
    rounds = [[ask(stop, [0.65], step)[0] for step in range(1, 7)] for _ in range(3)]
    assert rounds[0] == rounds[1] == rounds[2]
    assert rounds[0][0]
    assert not rounds[0][-1]


def test_rows_that_draft_after_others_in_a_round_pay_for_what_those_drafted() -> None:
    """Where methods differ rows draft one after another: prices rise with all tokens of the round."""
    steep = 1e-3 + np.concatenate((np.linspace(0.0, 1e-4, 8), 1e-4 + 2e-3 * np.arange(1.0, 8.0)))
    outlook = Outlook(1000.0, np.full((2, 7), 0.8), 1e-5, 0.0, steep)
    rule = MarginalGoodputStop(Calibration())
    stop = rule.begin(Choice(np.full(2, 7), np.zeros(2, dtype=np.int64), outlook))
    assert stop is not None

    def drafted(row: int) -> int:
        for step in range(1, 8):
            if not stop(step, np.array([row]), np.array([0.99]), np.zeros(1)).item():
                return step
        return 7

    first, second = drafted(0), drafted(1)
    assert second < first
    assert (drafted(0), drafted(1)) == (first, second)  # the next round


def test_marginal_goodput_never_goes_on_where_time_costs_more_than_a_token_is_worth() -> None:
    rule = MarginalGoodputStop(Calibration())
    assert ask(rule.begin(choice(1, goodput=4000.0)), [0.99]) == [False]


def test_a_step_is_shared_by_the_rows_that_take_it() -> None:
    """Alone, the step costs more than the row gains; four rows together pay for it."""
    rule = MarginalGoodputStop(Calibration())
    dear = {"goodput": 1000.0, "step": 9e-4, "token": 4e-4}
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


def test_a_rule_of_its_own_learns_how_sure_the_draft_really_is() -> None:
    """A draft that is always sure and always wrong: without a chooser to teach it, the rule finds out by itself."""
    rule = MarginalGoodputStop()
    assert rule.learns
    assert ask(rule.begin(choice(1)), [0.95]) == [True]
    for _ in range(32):
        rule.learn(record([3], [0], confidence=0.95))
    assert ask(rule.begin(choice(1)), [0.95]) == [False]


def test_a_calibration_that_somebody_else_teaches_is_left_alone() -> None:
    """Or every round would count twice."""
    calibration = Calibration()
    rule = MarginalGoodputStop(calibration)
    assert not rule.learns
    for _ in range(32):
        rule.learn(record([3], [0], confidence=0.95))
    rule.begin(choice(1))
    assert not calibration.informed


def test_a_calibration_of_its_own_survives_a_restart() -> None:
    rule = MarginalGoodputStop()
    for _ in range(200):
        rule.learn(record([3], [1]))
    again = MarginalGoodputStop()
    again.restore(rule.learned())
    assert again.learned()["calibration"].tolist() == rule.learned()["calibration"].tolist()
