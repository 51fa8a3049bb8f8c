"""Policies side by side: each runs every prompt alone, and ratios are to the first one's."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.bench.side_by_side import SideBySideSettings, run_side_by_side, side_by_side_report
from adaptspec.bench.workloads import read_workloads
from adaptspec.engine.engine_config import EngineConfig


def test_every_policy_runs_every_prompt(
    target_path: Path, draft_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one's ratio is 1, in all and for each task; the others' lie within their interval."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    workloads = {task: prompts * 3 for task, prompts in list(read_workloads(None, 1).items())[:2]}
    settings = SideBySideSettings(("off", "static-3"), tokens=6, batch=2, temperature=0.8)
    ticks: list[None] = []
    result = run_side_by_side(
        EngineConfig(str(target_path), str(draft_path)), workloads, settings, lambda: ticks.append(None)
    )
    assert len(ticks) == 4  # two groups of each task
    first, second = result["policies"]
    assert [first["policy"], second["policy"]] == ["off", "static-3"]
    assert first["over_first"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert first["tokens"] == second["tokens"] > 0 == first["drafted"] < second["drafted"]
    assert first["same_text"]
    assert second["same_text"]
    assert set(second["tasks"]) == set(workloads)
    assert second["over_first"]["low"] <= second["over_first"]["mean"] <= second["over_first"]["high"]
    assert side_by_side_report(result)
