"""The quick benchmark: every contender answers every prompt with the same tokens, and ratios are what they say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from adaptspec.bench.quick import QuickSettings, disturbed, run_quick
from adaptspec.bench.workloads import read_workloads
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.engine_config import EngineConfig


@pytest.fixture
def config(target_path: Path, draft_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return EngineConfig(str(target_path), str(draft_path), limits=EngineLimits(max_rows=1))


def test_it_measures_every_ratio_for_every_task(config: EngineConfig) -> None:
    """The result names each task's ratios with their spread, and counts what was run."""
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


@pytest.mark.parametrize("policy", ["goodput-ngram", "off"])
def test_any_shipped_policy_can_be_measured(config: EngineConfig, policy: str) -> None:
    """Without a draft model too: the wrong drafts are then wrong lookups, or none."""
    workloads = {"chat": read_workloads(None, 1)["chat"]}
    settings = QuickSettings(tokens=6, repeats=1, policy=policy)
    result = run_quick(replace(config, draft=None), workloads, settings, lambda: None)
    assert result["settings"]["policy"] == policy
    assert result["settings"]["drafter"] == "ngram"
    assert {"off", policy, "wrong-draft"} <= set(result["milliseconds_per_token"])
    json.dumps(result, allow_nan=False)


def runs(process: int) -> bool:
    """Whether it is there and no zombie."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_they_end_with_what_they_disturb() -> None:
    """Also where that fails."""
    started: list[int] = []

    def fail() -> None:
        with disturbed(2) as processes:
            started.extend(processes)
            assert all(map(runs, started))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert len(started) == 2
    assert not any(map(runs, started))


def test_they_end_where_whoever_started_them_is_killed() -> None:
    """Nobody is left then to end them."""
    program = (
        "import time\nfrom adaptspec.bench.quick import disturbed\n"
        "with disturbed(1) as started:\n    print(*started, flush=True)\n    time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    (child,) = map(int, parent.stdout.readline().split())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    while runs(child):  # the test's own limit ends it otherwise
        time.sleep(0.01)
    assert os.getpid() != child
