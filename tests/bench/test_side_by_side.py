"""Policies side by side: each runs every prompt alone, and ratios are to the first one's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adaptspec.bench.side_by_side import SideBySideSettings, run_side_by_side, side_by_side_report
from adaptspec.bench.workloads import read_workloads
from adaptspec.control.algorithms.registry import GROUP
from adaptspec.engine.engine_config import EngineConfig
from tests.policies.world import HEADER


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


# It drafts nothing, and notes each request that begins: which policy has it, and by which cost table it decides.
NOTING = """
from pathlib import Path
from typing import Literal
from adaptspec.control.algorithms.depth_rules import Static, StaticSpec

class Noting(Static):
    def __init__(self, name, cost):
        super().__init__(0)
        self.name, self.cost = name, cost

    def start(self, row):
        with Path(__file__).with_name("noted").open("a") as notes:
            print(self.name, id(self.cost), file=notes)

class NotingSpec(StaticSpec):
    algorithm: Literal["noting"]
    name: str

    def build(self, parts):
        return Noting(self.name, parts.cost)
"""


@pytest.mark.whole
def test_policies_take_turns_and_share_no_costs(tmp_path: Path) -> None:
    """Each is first as often as the others: that one meets a colder machine. What it learns of costs is its own, or the
    others would be measured with prices that they never paid for.
    """
    (tmp_path / "noting.py").write_text(NOTING)
    metadata = tmp_path / "noting-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: noting\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\nnoting = noting:NotingSpec\n")
    choices = ["--tokens", "2", "--prompts", "1", "--json"]
    for name in "abc":
        text = f"{HEADER}  choose: {{algorithm: noting, depth: 0, name: {name}}}\n"
        (tmp_path / f"{name}.yaml").write_text(text.replace("name: tested", f"name: {name}"))
        choices.append(str(tmp_path / f"{name}.yaml"))
    places = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": places, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "adaptspec", "bench", "policies", *choices]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    noted = [line.split() for line in (tmp_path / "noted").read_text().splitlines()]
    orders = {"".join(name for name, _ in noted[at : at + 3]) for at in range(0, len(noted), 3)}
    assert orders == {"abc", "bca", "cab"}
    assert len({cost for _, cost in noted}) == len({(name, cost) for name, cost in noted}) == 3
