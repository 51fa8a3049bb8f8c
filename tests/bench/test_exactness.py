"""The exactness benchmark finds what it is there to find."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptspec.bench.exactness import TIES, Reference, compare, run_exactness
from adaptspec.bench.workloads import read_workloads
from adaptspec.control.language.library import shipped_policies
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.training.measure import load_transformers
from adaptspec.types import Completion, FinishReason, SpeculationStats, Timings
from adaptspec.verification.coupled import Coupled
from adaptspec.verification.method import VerifyResult


@pytest.fixture
def config(target_path: Path, draft_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return EngineConfig(str(target_path), str(draft_path), limits=EngineLimits(max_rows=4))


def test_the_engine_passes(config: EngineConfig) -> None:
    """Tiny random pair: no unexplained divergence in any setting, policies that ship included."""
    workloads = {"chat": read_workloads(None, 1)["chat"], "math": read_workloads(None, 1)["math"]}
    result = run_exactness(config, workloads, 10, lambda _: None, policies=True)
    assert result["prompts"] == 2
    assert {path.stem for path in shipped_policies()} <= {setting["depth"] for setting in result["settings"]}
    assert result["unexplained"] == 0


class Generous(Coupled):
    """Accepts one token too many."""

    def verify(self, *arguments: Any) -> VerifyResult:
        verdict, counts = super().verify(*arguments), arguments[1].counts
        return VerifyResult((verdict.accepted + 1).clip(max=counts), verdict.following)


def test_a_wrong_verification_is_caught(config: EngineConfig) -> None:
    """A check that cannot fail is worth nothing: accepting one token too many shows as unexplained divergence."""
    workloads = {"chat": read_workloads(None, 1)["chat"]}
    assert run_exactness(config, workloads, 10, lambda _: None, method=Generous)["unexplained"] > 0


def test_texts_that_are_not_plain_decodings_are_counted(config: EngineConfig) -> None:
    """Whatever the reference says: the share is of texts that drafts have changed, by depth, none at depth 0."""
    workloads = {"chat": read_workloads(None, 1)["chat"]}
    exact = run_exactness(config, workloads, 10, lambda _: None, depths=(0, 3))
    assert exact["dtype"] == "float32"
    assert exact["changed_share"] == dict.fromkeys(("0", "3", "changing", "tree", "changing tree"), 0.0)
    wrong = run_exactness(config, workloads, 10, lambda _: None, depths=(0, 3), method=Generous)["changed_share"]
    assert wrong["0"] == 0.0
    assert wrong["3"] > 0.0


def test_text_that_goes_on_too_long_is_unexplained() -> None:
    """Beyond the reference's end there is no gap to compare: null in JSON, and never taken for rounding."""
    reference = Reference((1, 2), (7, 8), (1.0, 1.0))
    done = Completion("r0", "", (7, 8, 9), 2, FinishReason.STOP, SpeculationStats(), Timings(0.0, 0.0, 0.0, 0.0))
    row = compare([reference], [done], TIES["float32"])
    assert row["unexplained"] == 1
    assert row["divergences"] == [{"prompt": 0, "position": 2, "gap": None}]
    json.dumps(row, allow_nan=False)


def test_the_reference_has_the_engines_data_type(config: EngineConfig) -> None:
    """Two types round differently, which would be taken for a fault of speculation."""
    seen: list[torch.dtype] = []

    def noted(place: str, dtype: torch.dtype, device: torch.device) -> Any:
        seen.append(dtype)
        return load_transformers(place, dtype, device)

    workloads, changed = {"chat": read_workloads(None, 1)["chat"]}, replace(config, dtype="bfloat16")
    run_exactness(changed, workloads, 2, lambda _: None, depths=(1,), load_reference=noted)
    assert seen == [torch.bfloat16]
