"""Costs of rounds on a device: by its clock, from what is replayed there, at short and long contexts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.engine import device_laps
from adaptspec.engine.profiler import Stopwatch, disagreement, measure
from adaptspec.gpu.device_decoder import device_decoder
from adaptspec.gpu.round import DeviceRounds
from adaptspec.models.heads.formats import load_head
from adaptspec.models.kv_cache import CacheLimits
from adaptspec.models.loading import load_model
from tests.conftest import MakeModel
from tests.gpu.pretend import PretendCuda
from tests.models.heads.golden import HEADS

LIMITS = CacheLimits(4, cache_tokens=1024, context=256)


@pytest.fixture
def cuda() -> Iterator[PretendCuda]:
    with PretendCuda() as device:
        yield device


def runner(place: Path) -> Any:
    return load_model(str(place), device="cuda", dtype="float32", make=device_decoder).runner(LIMITS)


def test_rounds_are_replayed_and_timed(
    cuda: PretendCuda, target_path: Path, draft_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every cell, for as many rows as fit; rows are left free, and what is not a round's is not run."""
    monkeypatch.setattr(device_laps, "CONTEXTS", (100, 200, 5000))
    monkeypatch.setattr(device_laps, "TURNS", 1)
    target, draft = runner(target_path), DraftModelDrafter(runner(draft_path))
    made, capture = 0, DeviceRounds.capture

    def counted(rounds: DeviceRounds) -> None:
        nonlocal made
        made += 1
        capture(rounds)

    monkeypatch.setattr(DeviceRounds, "capture", counted)
    found = measure(target, [draft], 4, Stopwatch(target.device, budget=0.1))
    assert (found.rows, found.tokens) == ((1, 2, 4), (1, 2, 4, 8))
    assert all(seconds > 0 for line in found.verify for seconds in line)
    cost = found.drafters[draft.name]
    assert cost.rows == found.rows
    assert min(cost.step_seconds) > 0
    assert 0.0 <= found.per_cached_token < found.verify[0][0]
    assert cuda.replays.total() > 3 * 4 * device_laps.TURNS
    assert made == 1, "what all tables come of is captured once"
    assert target.free_memory == draft.runner.free_memory == 1.0
    assert disagreement(found, target, [draft]) >= 1.0


def test_drafts_made_beside_a_devices_rounds_are_timed_by_the_host(
    cuda: PretendCuda, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head's: the target's passes are still those of captured rounds, which tell it their states."""
    monkeypatch.setattr(device_laps, "TURNS", 1)
    place = str(make_model("llama", hidden_size=16, num_hidden_layers=4))
    loaded = load_model(place, device="cuda", dtype="float32", make=device_decoder)
    target: Any = loaded.runner(LIMITS)
    head: Any = load_head(str(HEADS / "eagle3"), loaded).runner(LIMITS)
    target.listen(head)
    found = measure(target, [drafter := DraftModelDrafter(head)], 2, Stopwatch(target.device, budget=0.1))
    assert (found.rows, found.drafters[drafter.name].rows) == ((1, 2), (1, 2))
    assert min(found.drafters[drafter.name].step_seconds) > 0
    assert cuda.replays.total() > 2 * 4 * device_laps.TURNS
    assert target.free_memory == head.free_memory == 1.0
    assert not head.unread
    assert head.reserve(0, 8)
    assert disagreement(found, target, [drafter]) >= 1.0


def test_eager_rounds_are_timed_as_they_run(cuda: PretendCuda, target_path: Path, draft_path: Path) -> None:
    target = runner(target_path)
    target.info = replace(target.info, eager=True)
    laps = device_laps.DeviceLaps([target, runner(draft_path)], 2, 4)
    assert laps.seconds(2, 20, 4, drafts=True) is not None
    assert not cuda.replays


def test_a_line_through_contexts(cuda: PretendCuda, target_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What rows hold costs by the token, however many rows share it; what does not fit is left out."""

    def seconds(_: object, count: int, context: int, width: int) -> tuple[float, float] | None:
        return None if count * context > 20_000 else (0.0, 1e-3 + 1e-4 * count + 3e-8 * count * context)

    monkeypatch.setattr(device_laps.DeviceLaps, "seconds", seconds)
    laps = device_laps.DeviceLaps([runner(target_path)], 4, 1)
    assert device_laps.per_cached_token(laps, (1, 2, 4), 64) == pytest.approx(3e-8)


def test_no_room_is_no_time(cuda: PretendCuda, target_path: Path) -> None:
    laps = device_laps.DeviceLaps([runner(target_path)], 4, 2)
    assert laps.seconds(4, 300, 2) is None
    assert laps.seconds(1, 100, 2) is not None
    assert torch.is_inference_mode_enabled() is False
