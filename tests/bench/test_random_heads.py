"""Heads of random weights: text stays, and what only hears drafts nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.bench.policies import PolicySettings
from adaptspec.bench.random_heads import KINDS, random_heads_report, run_random_heads
from adaptspec.bench.workloads import read_workloads
from adaptspec.engine.engine_config import EngineConfig
from tests.conftest import MakeModel


def test_each_kind_is_compared_with_plain_decoding(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = make_model("llama", hidden_size=16, num_hidden_layers=4)
    workloads = {task: prompts * 2 for task, prompts in list(read_workloads(None, 1).items())[:1]}
    settings = PolicySettings(tokens=8, batch=2)
    ticks: list[None] = []
    result = run_random_heads(EngineConfig(str(target)), workloads, settings, lambda: ticks.append(None))
    assert len(ticks) == len(result["heads"]) == len(KINDS)
    for plain, hearing, goodput in result["heads"].values():
        assert [one["name"] for one in (plain, hearing, goodput)] == ["off", "hearing", "goodput"]
        assert plain["drafted"] == hearing["drafted"] == 0
        assert plain["tokens"] == hearing["tokens"] == goodput["tokens"]
        assert all(one["same_text"] for one in (plain, hearing, goodput))
    assert random_heads_report(result)
