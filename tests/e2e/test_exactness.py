"""Exactness on the bundled pair: the benchmark command's own check, in small."""

from __future__ import annotations

from adaptspec.bench.exactness import run_exactness
from adaptspec.bench.workloads import read_workloads
from adaptspec.engine.engine_config import EngineConfig


def test_greedy_output_equals_transformers_at_every_depth() -> None:
    """Ten tasks, all depths and drafters, chains, trees and unions, alone and batched with aborts: token for token."""
    result = run_exactness(EngineConfig(dtype="float32"), read_workloads(None, 1), 24, lambda _: None)
    assert result["unexplained"] == 0
    chains, trees, unions = 5 * 4, 2 * 4, 2 * 3  # of four drafters; a model-free one beside the draft model
    assert len(result["settings"]) == 2 * (chains + trees + unions)
    speculating = [s for s in result["settings"] if s["depth"] != "0" and s["drafter"] == "draft-model"]
    assert all(s["prompts_with_rejections"] >= result["prompts"] / 2 for s in speculating)
    assert all(s["accepted"] > 0 for s in speculating)
