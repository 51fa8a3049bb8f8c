"""Speed of policies: each runs every prompt alone, and ratios are to plain decoding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from adaptspec.bench.speed import SpeedSettings, compare_speed, speed_config, speed_report
from adaptspec.bench.workloads import read_workloads
from adaptspec.config import EngineConfig
from adaptspec.control.algorithms.registry import GROUP
from adaptspec.engine.build import build
from adaptspec.errors import ConfigError, EngineError, RequestError
from tests.policies.world import HEADER


@pytest.fixture
def config(target_path: Path, draft_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return EngineConfig(model=str(target_path), draft=str(draft_path))


def run(config: EngineConfig, policies: Sequence[str], settings: SpeedSettings) -> tuple[dict[str, Any], int]:
    """The result for three prompts of two tasks, and how often the run told of its progress."""
    workloads = {task: prompts * 3 for task, prompts in list(read_workloads(None, 1).items())[:2]}
    ticks: list[None] = []
    chosen = speed_config(replace(config, policy=tuple(policies)), settings)
    result = compare_speed(build(chosen), chosen, workloads, settings, lambda: ticks.append(None))
    assert speed_report(result)
    json.dumps(result, allow_nan=False)
    return result, len(ticks)


def test_every_policy_runs_every_prompt(config: EngineConfig) -> None:
    """The first one's ratio is 1, in all and for each task; the others' lie within their interval."""
    result, ticks = run(config, ("static-3",), SpeedSettings(6, 2, 0.8, 2, depths=()))
    assert ticks == 8  # two groups of each task, twice
    first, second = result["contenders"]
    assert [first["name"], second["name"]] == ["off", "static-3"]
    assert first["over_first"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert first["tokens"] == second["tokens"] > 0 == first["drafted"] < second["drafted"]
    assert first["same_text"]
    assert second["same_text"]
    assert first["first_token_seconds"] > 0.0
    assert list(second["tasks"]) == list(result["settings"]["prompts"])
    assert second["over_first"]["low"] <= second["over_first"]["mean"] <= second["over_first"]["high"]
    assert (result["setup"]["dtype"], result["setup"]["runner"]) == ("float32", "torch")


@pytest.mark.parametrize(("draft", "default"), [(True, "goodput"), (False, "goodput-ngram")])
def test_without_names_fixed_depths_and_the_default_are_compared(
    config: EngineConfig, draft: bool, default: str
) -> None:
    """Of a model without a draft model, with lookups."""
    config = config if draft else replace(config, draft=None)
    result, _ = run(config, (), SpeedSettings(tokens=4, depths=(1, 3)))
    assert [one["name"] for one in result["contenders"]] == ["off", "static-1", "static-3", default]


def test_a_request_that_ends_in_an_error_is_not_timed_as_an_answer(config: EngineConfig, tmp_path: Path) -> None:
    """A model whose logits are no numbers: the error names the request and the policy."""
    folder = copytree(config.model, tmp_path / "damaged")
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"].fill_(torch.nan)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineError, match=r"request \d-0 fails under (off|goodput-ngram): .*not numbers"):
        run(replace(config, model=str(folder), draft=None), ("goodput-ngram",), SpeedSettings(4, depths=()))


def test_transformers_writes_the_same_text_one_at_a_time(config: EngineConfig) -> None:
    """It is a contender as any other."""
    result, _ = run(config, ("off",), SpeedSettings(4, depths=(), transformers=True))
    assert [one["name"] for one in result["contenders"]] == ["off", "transformers"]
    assert result["contenders"][1]["same_text"]
    with pytest.raises(RequestError, match="temperature is -1"):
        SpeedSettings(temperature=-1)
    with pytest.raises(ConfigError, match="one at a time and greedy"):
        SpeedSettings(batch=4, transformers=True)


# It drafts nothing, and notes each request that begins: which policy has it, and by which cost table it decides.
NOTING = """
from pathlib import Path
from typing import Literal
from adaptspec.control.algorithms.fixed_depths import Static, StaticSpec

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
    choices = ["--tokens", "2", "--prompts", "1", "--json", "--depths"]
    for name in "abc":
        text = f"{HEADER}  choose: {{algorithm: noting, depth: 0, name: {name}}}\n"
        (tmp_path / f"{name}.yaml").write_text(text.replace("name: tested", f"name: {name}"))
        choices += ["--policy", str(tmp_path / f"{name}.yaml")]
    places = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": places, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "adaptspec", "bench", "speed", *choices]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    noted = [line.split() for line in (tmp_path / "noted").read_text().splitlines()]
    orders = {"".join(name for name, _ in noted[at : at + 3]) for at in range(0, len(noted), 3)}
    assert orders == {"abc", "bca", "cab"}  # plain decoding, which notes nothing, is the first of them
    assert len({cost for _, cost in noted}) == len({(name, cost) for name, cost in noted}) == 3
