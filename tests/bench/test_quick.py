"""The quick benchmark: every contender answers every prompt with the same tokens, and ratios are what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.bench.quick import QuickSettings, run_quick
from adaptspec.bench.workloads import read_workloads
from adaptspec.engine.build import EngineConfig
from adaptspec.engine.core import Limits


def test_it_measures_every_ratio_for_every_task(
    target_path: Path, draft_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result names each task's ratios with their spread, and counts what was run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = EngineConfig(str(target_path), str(draft_path), limits=Limits(max_rows=1))
    workloads = dict(list(read_workloads(None, 1).items())[:2])
    ticks: list[None] = []
    result = run_quick(config, workloads, QuickSettings(tokens=6, repeats=2), lambda: ticks.append(None))
    assert len(ticks) == 4
    assert set(result["tasks"]) == set(workloads)
    for row in result["tasks"].values():
        assert {
            "plain_over_transformers",
            "policy_over_plain",
            "policy_over_best_fixed",
            "wrong_draft_over_plain",
        } <= set(row)
        assert all(cell["lowest"] <= cell["median"] <= cell["highest"] for cell in row.values())
    assert result["mean"].keys() == result["worst"].keys()
    assert all(result["worst"][key] <= result["mean"][key] for key in result["mean"])
