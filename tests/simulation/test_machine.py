"""Machines: times are the measured ones, linear in between; shipped tables state their origin; broken files fail."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from adaptspec.commands.policy_command import MACHINES
from adaptspec.control.cost_model import CostModel
from adaptspec.control.cost_profile import CostProfile, DrafterCost
from adaptspec.drafters import Kind, kind_of
from adaptspec.errors import ConfigError
from adaptspec.simulation import machine
from adaptspec.simulation.machine import (
    Curve,
    Grid,
    Machine,
    load_machine,
    machines_of,
    parse_machine,
    shipped_machines,
)
from adaptspec.simulation.tape_file import find_tape, load_tape
from tests.policies.cells import tape as smollm2_tape

SMOLLM2 = [name for name in shipped_machines() if name.startswith("smollm2-")]
PROFILE = CostProfile(
    rows=(1, 4),
    tokens=(1, 8),
    verify=((0.001, 0.002), (0.002, 0.006)),
    drafters={"draft-model": DrafterCost((1, 4), (0.0002, 0.0003), 5e-6, 1e-4)},
    per_cached_token=1e-8,
    overhead=1e-4,
)


def test_a_curve_is_linear_between_its_points_and_goes_on_with_the_last_slope() -> None:
    curve = Curve((1.0, 2.0, 4.0), (3.0, 4.0, 8.0))
    assert [curve.at(count) for count in (0.5, 1, 1.5, 3, 4, 6)] == [3.0, 3.0, 3.5, 6.0, 8.0, 12.0]
    assert Curve((1.0, 2.0), (3.0, 2.0)).at(9.0) == 2.0, "a noisy end must not lead to times below zero"
    assert Curve((2.0,), (3.0,)).at(7.0) == 3.0


def test_a_grid_is_bilinear_in_rows_and_tokens_per_row() -> None:
    grid = Grid((1.0, 3.0), (Curve((1.0, 2.0), (1.0, 2.0)), Curve((1.0, 2.0), (3.0, 5.0))))
    assert grid.at(2, 3) == pytest.approx((1.5 + 4.0) / 2)
    assert grid.at(5, 10) == pytest.approx(5.0 + (5.0 - 2.0)), "beyond its rows with the last slope"
    assert grid.at(0, 4) == grid.at(1, 4), "a pass that only reads prompts"


@pytest.mark.parametrize("name", shipped_machines())
def test_policies_start_from_the_true_times_at_the_points_of_a_profile(name: str) -> None:
    """The profile of a shipped machine is a full table, and agrees with the truth at its points."""
    known = load_machine(name)
    cost = CostModel(known.profile())
    prices, step = cost.draft_prices("draft-model", 4), known.step_seconds("draft-model", 4, 0.0)
    assert cost.verify_seconds(4, 8) == pytest.approx(known.verify_seconds(4, 8, 0.0), rel=0.15)
    assert prices.step + 4 * prices.step_row == pytest.approx(step, rel=0.1)


@pytest.mark.parametrize("name", SMOLLM2)
def test_machines_of_smollm2_are_measured_tables_with_their_origin(name: str) -> None:
    path = Path(machine.__file__).parent / "profiles" / f"{name}.json"
    fields = json.loads(path.read_text(encoding="utf-8"))
    assert {"machine", "processor", "date", "about", "source"} <= {*fields}
    known = load_machine(name)
    assert known.name == known.label == fields["machine"] == name
    assert {*known.drafters} == {*smollm2_tape().drafters}
    for tokens, seconds in zip(fields["verify"]["tokens"], fields["verify"]["seconds"], strict=True):
        assert known.verify_seconds(1, tokens, 0.0) == seconds
    models = [drafter for drafter in known.drafters if kind_of(drafter) is Kind.MODEL]
    assert models
    assert all(known.step_seconds(drafter, 1, 0.0) > 0.0 for drafter in models)


def test_the_gpu_is_labelled_and_drafts_whole() -> None:
    """Its times were computed; policies learn from its profile that a stop rule saves no step there."""
    gpu = load_machine("gpu-8b")
    assert gpu.label == "gpu-8b (simulated)"
    assert gpu.profile().drafters["draft-model"].together
    others = [load_machine(name) for name in shipped_machines() if name != "gpu-8b"]
    assert not any(other.simulated or other.profile().drafters["draft-model"].together for other in others)


def test_tapes_have_the_machines_of_their_model() -> None:
    bundled = load_tape(find_tape("bundled"))
    assert [known.name for known in machines_of(bundled.about)] == ["cpu-2-cores", "gpu-8b"]
    assert [known.name for known in machines_of(smollm2_tape().about)] == SMOLLM2
    on_torch = {"target": smollm2_tape().about["target"] + "-torch"}
    assert [known.name for known in machines_of(on_torch)] == SMOLLM2, "the same file by another runner"
    assert machines_of({"target": "another"}) == machines_of({}) == []


def test_help_names_the_machines_that_ship() -> None:
    assert list(MACHINES) == shipped_machines()


def test_a_profile_that_an_engine_measured_is_a_machine(tmp_path: Path) -> None:
    """The truth between its points is interpolation; the policy starts from the very same profile."""
    path = tmp_path / "measured.json"
    path.write_text(PROFILE.to_json())
    measured = load_machine(str(path))
    assert measured.name == "measured"
    assert measured.profile() == PROFILE
    assert measured.verify_seconds(4, 32, 100.0) == pytest.approx(0.006 + 1e-6)
    assert measured.verify_seconds(2, 9, 0.0) == pytest.approx(2 / 3 * 0.0015 + 1 / 3 * 0.004)
    assert measured.step_seconds("draft-model", 3, 0.0) == pytest.approx(0.0002 + 2 / 3 * 0.0001)
    assert measured.drafters["ngram"].step is None


def test_a_cost_model_is_a_machine_at_the_points_of_its_profile() -> None:
    """A draft that reads along has its first step for nothing. Whether drafts run whole stays as it is."""
    draft = replace(PROFILE.drafters["draft-model"], reads_along=True, together=True)
    table = CostModel(replace(PROFILE, drafters={"draft-model": draft}))
    learned = Machine.of_cost_model("journal", table)
    for rows in (1, 4):
        for tokens in (rows, 8 * rows):
            assert learned.verify_seconds(rows, tokens, 50.0) == pytest.approx(table.verify_seconds(rows, tokens, 50.0))
        prices = table.draft_prices("draft-model", rows)
        step = learned.step_seconds("draft-model", rows, 0.0)
        assert step == pytest.approx(prices.step + rows * prices.step_row, rel=1e-3)
    assert learned.overhead == pytest.approx(table.overhead_seconds(1, drafting=False))
    times = learned.drafters["draft-model"]
    more = table.overhead_seconds(1, drafting=True) - table.overhead_seconds(1, drafting=False)
    assert times.start == pytest.approx(1e-4 - 2e-4 + more, rel=1e-3)
    assert times.together


def _table(**changed: object) -> str:
    """The JSON of a good machine table in which some parts are replaced."""
    good = {"machine": "m", "verify": {"tokens": [1], "seconds": [1]}, "drafters": {}, "overhead": 0.0}
    return json.dumps({**good, "per_cached_token": 0.0, **changed})


def test_the_good_table_of_these_tests_can_be_read() -> None:
    assert parse_machine(_table(), "broken").verify_seconds(1, 3, 0.0) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 7}',
        '{"machine": "m"}',
        _table(verify={"tokens": [2, 1], "seconds": [1, 2]}),
        _table(verify={"tokens": [1, 2], "seconds": [0, 2]}),
        _table(verify={"tokens": [1, 2], "seconds": [1]}),
        _table(verify={"tokens": [], "seconds": []}),
        _table(drafters={"ngram": {"per_lookup": 1}}),
        _table(overhead="much"),
    ],
)
def test_broken_tables_are_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="broken"):
        parse_machine(text, "broken")


def test_an_unknown_machine_names_those_that_ship() -> None:
    with pytest.raises(ConfigError, match="cpu-2-cores, gpu-8b"):
        load_machine("tpu")
