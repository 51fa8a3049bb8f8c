"""Reports: the figures of a cell are ratios of what was run, and the JSON holds what the tables say."""

from __future__ import annotations

import json

import pytest

from adaptspec.analysis.report import Report, simulate
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.loader import load_policy_spec
from adaptspec.errors import ConfigError
from adaptspec.simulation.machine import Curve, Machine, load_machine
from adaptspec.simulation.scenarios import WRONG, Schedule, mixed_scenarios, task_scenarios
from adaptspec.simulation.simulator import static_spec
from tests.policies.tapes import made_tape


@pytest.fixture(scope="module")
def report() -> Report:
    """A fixed depth and the default, over one task, the worst case and mixed streams that change their size."""
    tape = made_tape({"code": 0.6}, count=3, length=30)
    cells = task_scenarios(tape, [Schedule((1,))]) + mixed_scenarios(tape, [Schedule((1, 4, 1))])[:1]
    policies = [static_spec(3), load_policy_spec(find_policy("goodput"))]
    ticks: list[None] = []
    made = simulate(
        policies,
        cells,
        [load_machine("cpu-2-cores"), load_machine("gpu-8b")],
        depths=(0, 1, 3),
        tick=lambda: ticks.append(None),
    )
    assert len(ticks) == len(made.cells) == 6
    return made


def test_a_fixed_depth_is_its_own_tier(report: Report) -> None:
    """The policy static-3 and the tier of depth 3 are one thing, so their ratios agree to rounding."""
    for cell in report.cells:
        tier = next(goodput for tier, goodput in cell.references.tiers.items() if tier.depth == 3)
        assert cell.policies["static-3"].goodput == pytest.approx(tier)
        assert cell.over_best_static("static-3") <= 1.0 + 1e-9


def test_the_worst_case_is_the_least_ratio_to_off(report: Report) -> None:
    """A stubborn depth loses most where drafts are always wrong."""
    wrong = [cell for cell in report.cells if cell.scenario.work == WRONG]
    assert (
        report.to_json()["policies"]["static-3"]["worst_ratio"]
        == min(cell.over_off("static-3") for cell in wrong)
        < 0.8
    )
    assert all(cell.to_json()["policies"]["static-3"]["gap_closed"] is None for cell in wrong)


def test_the_json_holds_the_same_figures(report: Report) -> None:
    """One object without NaN; limits are missing, not zero, where a stream changes its size."""
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert data["policies"].keys() == {"static-3", "goodput"}
    for cell, made in zip(data["cells"], report.cells, strict=True):
        own = cell["policies"]["goodput"]
        assert own["ratio"] == made.over_off("goodput")
        assert own["over_best_static"] == pytest.approx(own["ratio"] / cell["best_static"]["ratio"])
        assert sum(own["depths"]) == made.policies["goodput"].row_rounds
        assert cell["tiers"]["off"] == 1.0
        fixed = made.scenario.batch == "1"
        assert (cell["clairvoyant"] is not None) == fixed
        if fixed:
            assert own["over_clairvoyant"] == pytest.approx(own["ratio"] / cell["clairvoyant"])


def test_shifts_are_told_of_where_requests_come_one_by_one() -> None:
    """Two phases: one shift to recover from, at most the second phase long; the best of each phase is a reference."""
    tape = made_tape({"code": 0.2, "json": 0.95}, count=12, length=60)
    phased = mixed_scenarios(tape, [Schedule((1,))])[1:]
    report = simulate([static_spec(0), load_policy_spec(find_policy("goodput"))], phased, [load_machine("gpu-8b")])
    (cell,) = json.loads(json.dumps(report.to_json(), allow_nan=False))["cells"]
    assert cell["per_phase_best"] >= cell["best_static"]["ratio"]
    off, adaptive = cell["policies"]["static-0"], cell["policies"]["goodput"]
    assert off["recovery_tokens"] == [12 * 59.0], "it never does"
    assert 0.0 <= adaptive["recovery_tokens"][0] < 12 * 59.0
    assert off["over_per_phase_best"] == pytest.approx(1.0 / cell["per_phase_best"])
    assert off["switches_per_1000_tokens"] == off["probing_cost"] == 0.0
    assert adaptive["switches_per_1000_tokens"] > 0.0
    assert -0.5 < adaptive["probing_cost"] < 0.5
    assert report.to_json()["policies"]["goodput"]["recovery_tokens"] == adaptive["recovery_tokens"][0]


def test_ratios_that_cannot_be_are_refused() -> None:
    """By a table in which two tokens take half of the time of one, depth 1 would earn more than two tokens a round."""
    costs = Machine("wrong", Curve((1.0, 2.0, 8.0), (4e-3, 1e-3, 2e-3)), load_machine("cpu-2-cores").drafters)
    cells = task_scenarios(made_tape({"code": 0.9}, count=2, length=30), [Schedule((1,))])
    made = simulate([static_spec(1)], cells, [costs], depths=(0, 1))
    with pytest.raises(ConfigError, match="cannot be more than 2: its costs are wrong"):
        made.check()
