"""Cost tables: the shipped ones say what they are said to say, profiles are read, broken files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptspec.control.cost import CostProfile, CostTable, DrafterCost
from adaptspec.errors import ConfigError
from adaptspec.simulation.cost_profiles import load_costs, parse_costs, shipped_costs

PROFILE = CostProfile(
    rows=(1, 4),
    tokens=(1, 8),
    verify=((0.001, 0.002), (0.002, 0.006)),
    drafters={"draft-model": DrafterCost((1, 4), (0.0002, 0.0003), 5e-6)},
    per_cached_token=1e-8,
    overhead=1e-4,
)


def test_tables_that_ship_can_be_loaded_and_profiled() -> None:
    """What a policy is given of them is a full table, and agrees with the truth where a profiler measures."""
    assert {"cpu-2-cores", "gpu-8b"} <= set(shipped_costs())
    for name in shipped_costs():
        costs = load_costs(name)
        table = CostTable(costs.profile())
        assert table.verify_seconds(4, 8) == pytest.approx(costs.verify_seconds(4, 8, 0.0))
        assert table.draft_step_seconds("draft-model", 4) == pytest.approx(costs.step_seconds("draft-model", 4, 0.0))


def test_a_profile_that_an_engine_measured_is_a_machine(tmp_path: Path) -> None:
    """The truth between its points is interpolation; the policy starts from the very same profile."""
    path = tmp_path / "measured.json"
    path.write_text(CostTable(PROFILE).to_json())
    costs = load_costs(str(path))
    assert costs.name == "measured"
    assert costs.profile() == PROFILE
    assert costs.verify_seconds(4, 32, 100.0) == pytest.approx(0.006 + 1e-6)
    assert costs.step_seconds("draft-model", 4, 0.0) == pytest.approx(0.0003)
    assert costs.drafters["ngram"].step is None


def _table(**changed: object) -> str:
    """A good table of our own kind, with something else in place of one of its parts."""
    good = {"machine": "m", "verify": {"base": 1, "per_token": 0.1}, "drafters": {}, "overhead": 0.0}
    return json.dumps({**good, "per_cached_token": 0.0, **changed})


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
        _table(drafters={"ngram": {"per_lookup": 1}}),
        _table(overhead="much"),
    ],
)
def test_broken_tables_are_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="mine"):
        parse_costs(text, "mine")


def test_an_unknown_table_names_those_that_ship() -> None:
    with pytest.raises(ConfigError, match="cpu-2-cores, gpu-8b"):
        load_costs("tpu")
