"""The GPU kit runs whole on small shapes, so that minutes on a real device are not lost to slips."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptspec.bench import device_bandwidth, device_goodput, device_texts, gpu_kit
from adaptspec.bench.gpu_kit import PARTS, Bench, run_gpu_kit
from adaptspec.bench.random_models import FULL, TINY, random_decoder, room_for, temperature_for
from adaptspec.engine import device_laps
from adaptspec.engine.async_engine import AsyncEngine
from tests.gpu.pretend import PretendCuda


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendCuda]:
    monkeypatch.setattr(device_laps, "TURNS", 1)
    serve = AsyncEngine._serve
    with PretendCuda() as device:

        def entered(engine: AsyncEngine) -> None:
            device.enter_thread()
            serve(engine)

        monkeypatch.setattr(AsyncEngine, "_serve", entered)
        yield device


@pytest.mark.parametrize(
    ("part", "device"),
    [("bits", "cpu"), ("kernels", "cpu"), ("bandwidth", "cpu"), ("goodput", "cpu"), ("soak", "cuda")],
)
def test_every_part_runs(
    cuda: PretendCuda, tmp_path: Path, part: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing fails, nothing that is to hold does not, and all of it is in the files."""
    monkeypatch.setattr(device_goodput, "RATES", (0.8,))
    monkeypatch.setattr(device_goodput, "POLICIES", ("off", "static-3", "goodput-trees"))
    monkeypatch.setattr(device_goodput, "TURNS", 2)
    monkeypatch.setattr(device_texts, "TURNS", 1)
    result = run_gpu_kit([part], tmp_path, device=device, tiny=True, seconds=3.0 if part == "soak" else 60.0)
    (found,) = result["parts"]
    assert found["failed"] == {}
    assert result["good"], found["pieces"]
    assert part == "soak" or not found["left_out"]
    assert json.loads((tmp_path / f"gpu-{part}.json").read_text()) == json.loads(json.dumps(found))
    report = (tmp_path / f"gpu-{part}.md").read_text()
    assert all(f"## {piece}" in report for piece in found["pieces"])
    for lines in (value for value in found["pieces"].values() if isinstance(value, list)):
        assert lines
        assert not any("failed" in line for line in lines)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("part", PARTS)
def test_every_part_runs_on_a_device(tmp_path: Path, part: str) -> None:
    """Compiled kernels, real graphs, both engines: what holds on the CPU holds there."""
    result = run_gpu_kit([part], tmp_path, device="cuda", tiny=True, seconds=60.0)
    (found,) = result["parts"]
    assert found["failed"] == {}
    assert result["good"], found["pieces"]


def test_what_is_timed_on_a_device_is_replayed(cuda: PretendCuda) -> None:
    limit = device_bandwidth.memory(torch.device("cuda"), 2**16)
    assert limit.copied > 0
    assert cuda.replays.total() == 5
    assert limit.shares(10, 2.0) == {"of_copy": 5.0 / limit.copied}
    assert room_for(FULL, torch.device("cuda")) < FULL.cached
    assert gpu_kit.machine(torch.device("cuda"))["name"] == "pretended"


def test_what_there_is_no_time_for_is_named(tmp_path: Path) -> None:
    result = run_gpu_kit([], tmp_path, device="cpu", tiny=True, seconds=0.0)
    assert [one["left_out"] for one in result["parts"]] == [[part] for part in PARTS]
    assert "No time was left for: soak" in (tmp_path / "gpu-soak.md").read_text()


def test_a_piece_that_fails_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Part:
        @staticmethod
        def run(bench: Bench) -> None:
            bench.piece("first", lambda: 1 // 0)
            bench.piece("second", lambda: [{"found": 1.23456, "good": True}])

    monkeypatch.setattr(gpu_kit, "import_module", lambda _: Part)
    result = run_gpu_kit(["soak"], tmp_path, device="cpu", tiny=True)
    assert not result["good"]
    (found,) = result["parts"]
    assert list(found["failed"]) == ["first"]
    assert list(found["pieces"]) == ["second"]
    assert "| 1.235 | True |" in (tmp_path / "gpu-soak.md").read_text()


def test_temperatures_force_acceptance() -> None:
    """The hotter, the more often two random models choose alike."""
    models: list[Any] = [
        random_decoder(shape, torch.device("cpu"), rows=1, cached=512, context=300, seed=seed)
        for seed, shape in enumerate((TINY.target, TINY.draft))
    ]
    heats = [temperature_for(rate, *models) for rate in (0.5, 0.7, 0.9)]
    assert heats == sorted(heats)
    assert heats[0] > 0.1
    assert heats[2] < 100.0
