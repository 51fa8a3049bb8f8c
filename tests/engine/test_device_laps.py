"""Costs of rounds on a device: by its clock, from what is replayed there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.engine.profiler import Stopwatch, disagreement, measure
from adaptspec.gpu.device_decoder import device_decoder
from adaptspec.models.heads.head_checkpoint import load_head
from adaptspec.models.kv_cache import CacheLimits
from adaptspec.models.loading import load_model
from tests.conftest import MakeModel
from tests.gpu.pretend import PretendCuda
from tests.models.heads.golden import HEADS

LIMITS = CacheLimits(2, cache_tokens=512, context=256)


@pytest.mark.whole
@pytest.mark.parametrize("draft", ["model", "head"])
def test_rounds_are_replayed_and_timed(make_model: MakeModel, draft_path: Path, draft: str) -> None:
    """Every cell, for as many rows as fit; rows are left free. A head drafts beside rounds that are captured."""
    place = str(make_model("llama", hidden_size=16, num_hidden_layers=4))
    with PretendCuda() as cuda:
        loaded = load_model(place, device="cuda", dtype="float32", make=device_decoder)
        target: Any = loaded.runner(LIMITS)
        if draft == "head":
            runner: Any = load_head(str(HEADS / "eagle3"), loaded).runner(LIMITS)
            target.capture_states(runner.spec.capture)
        else:
            runner = load_model(str(draft_path), device="cuda", dtype="float32", make=device_decoder).runner(LIMITS)
        drafter = DraftModelDrafter(runner)
        found = measure(target, [drafter], 2, Stopwatch(target.device, budget=10.0))
        assert (found.rows, found.tokens) == ((1, 2), (1, 2, 4, 8))
        assert all(seconds > 0 for line in found.verify for seconds in line)
        assert min(found.drafters[drafter.name].step_seconds) > 0
        assert 0.0 <= found.per_cached_token < found.verify[0][0]
        assert cuda.replays.total() > 2 * 4
        assert target.free_memory == runner.free_memory == 1.0
        assert disagreement(found, target, [drafter]) >= 1.0
