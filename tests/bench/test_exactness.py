"""The exactness benchmark finds what it is there to find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptspec.bench import exactness
from adaptspec.bench.exactness import run_exactness
from adaptspec.bench.workloads import read_workloads
from adaptspec.engine.build import EngineConfig
from adaptspec.engine.core import Limits
from adaptspec.verification.coupled import Coupled
from adaptspec.verification.method import Verdict


@pytest.fixture
def config(target_path: Path, draft_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return EngineConfig(str(target_path), str(draft_path), limits=Limits(max_rows=4))


def test_the_engine_passes(config: EngineConfig) -> None:
    """Tiny random pair: no unexplained divergence in any setting."""
    workloads = {"chat": read_workloads(None, 1)["chat"], "math": read_workloads(None, 1)["math"]}
    result = run_exactness(config, workloads, 10, lambda _: None)
    assert result["prompts"] == 2
    assert result["unexplained"] == 0


def test_a_wrong_verification_is_caught(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that cannot fail is worth nothing: accepting one token too many shows as unexplained divergence."""

    class Generous(Coupled):
        def verify(self, *arguments: Any) -> Verdict:
            verdict, counts = super().verify(*arguments), arguments[1].counts
            return Verdict((verdict.accepted + 1).clip(max=counts), verdict.following)

    monkeypatch.setattr(exactness, "method", lambda name: Generous())
    workloads = {"chat": read_workloads(None, 1)["chat"]}
    assert run_exactness(config, workloads, 10, lambda _: None)["unexplained"] > 0
