"""The bench for GPUs runs all of its pieces on a CPU, with small shapes, and writes what it finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIECES = {"model", "passes", "products", "drafts"}
pytestmark = [pytest.mark.whole, pytest.mark.timeout(300)]


def run(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "adaptspec.bench.gpu", "--out", str(out), "--device", "cpu", "--tiny"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "--operators", "tests.gpu.reference", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_piece_runs_and_is_written(tmp_path: Path, target_path: Path) -> None:
    done = run(tmp_path, "--model", str(target_path))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()}
    models = ("tiny", "tiny-draft", target_path.name)
    assert found.keys() == {
        "bandwidth",
        "requests",
        *(f"{model}-{piece}" for model in models for piece in (*PIECES, "transformers")),
    }
    assert all(piece["lines"] and "error" not in piece for piece in found.values())
    policies = [line["policy"] for line in found["requests"]["lines"] if line["rows"] == 1]
    assert policies == ["off", "static-1", "static-3", "static-7", "goodput"]
    drafted = {line["policy"]: line["drafted"] for line in found["requests"]["lines"]}
    assert drafted["off"] == 0
    assert drafted["static-3"] == pytest.approx(3.0)
    assert max(line["accepted"] for line in found["requests"]["lines"]) > 0.0
    assert "left" not in done.stdout


def test_pieces_without_time_are_named(tmp_path: Path) -> None:
    done = run(tmp_path, "--seconds", "0")
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
    assert "no time was left for bandwidth" in done.stdout


def test_a_piece_that_fails_is_reported_and_the_others_run(tmp_path: Path) -> None:
    done = run(tmp_path, "--model", str(tmp_path / "missing"))
    assert done.returncode == 1
    assert "missing model failed: ModelError" in done.stdout
    assert "error" in json.loads((tmp_path / "missing-model.json").read_text(encoding="utf-8"))
    assert json.loads((tmp_path / "requests.json").read_text(encoding="utf-8"))["lines"]
