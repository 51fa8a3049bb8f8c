"""`adaptspec bench gpu` runs on small shapes, so that minutes on a real device are not lost to slips."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from adaptspec.bench.gpu_kit import PARTS
from adaptspec.cli import main


def run(part: str, device: str, out: Path) -> None:
    """One part of the kit, which must find nothing wrong."""
    assert main(["bench", "gpu", "--tiny", "--device", device, "--part", part, "--out", str(out)]) == 0
    found = json.loads((out / f"gpu-{part}.json").read_text())
    assert found["failed"] == {}
    assert found["pieces"]
    assert all(f"## {piece}" in (out / f"gpu-{part}.md").read_text() for piece in found["pieces"])


@pytest.mark.parametrize("part", ["bits", "kernels"])
def test_a_part_runs_without_a_device(tmp_path: Path, part: str) -> None:
    run(part, "cpu", tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("part", PARTS)
def test_every_part_runs_on_a_device(tmp_path: Path, part: str) -> None:
    """Compiled kernels, real graphs, both engines: what holds on the CPU holds there."""
    run(part, "cuda", tmp_path)
