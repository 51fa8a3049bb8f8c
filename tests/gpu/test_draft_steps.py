"""A draft model on another device than its target: the same answers, of as many accepted tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.engine.engine_config import EngineConfig, model_path
from adaptspec.errors import ConfigError
from adaptspec.models.loading import load_model
from tests.exactness.harness import answers
from tests.gpu.engines import DRAWN, GREEDY, LIMITS, TOP_P, built, requests, same
from tests.gpu.pretend import PretendCuda
from tests.models.heads.golden import HEADS

pytestmark = pytest.mark.whole
CONFIG = EngineConfig(policies=("static-3",), dtype="float32", context=128, limits=LIMITS, eager=True)


def test_target_and_draft_may_be_on_two_devices() -> None:
    """Either way round: scores go to where the target's are."""
    found = []
    with PretendCuda():
        for target, draft in (("cpu", "cpu"), ("cuda", "cpu"), ("cpu", "cuda")):
            one = built(replace(CONFIG, device=target, draft_device=draft))
            (drafter,) = (drafter for drafter in one.drafters if isinstance(drafter, DraftModelDrafter))
            assert [one.target.device.type, drafter.runner.device.type] == [target, draft]
            found.append(answers(one.core, requests(one, GREEDY, DRAWN, TOP_P)))
    for done in found[1:]:
        same(done, found[0])
        accepted = [sum(one.stats.accepted for one in each.values()) for each in (done, found[0])]
        assert accepted[0] == accepted[1] > 0


def test_devices_that_cannot_be_used_are_refused() -> None:
    """One that is not there, and one for a head, which drafts from the target's states."""
    with PretendCuda(), pytest.raises(ConfigError, match="cuda:1, but the CUDA devices here are 1, from cuda:0 on"):
        load_model(model_path("bundled", "draft"), device="cuda:1")
    with pytest.raises(ConfigError, match="leave --draft-device out"):
        built(EngineConfig("bundled", str(HEADS / "eagle3"), device="cpu", draft_device="cpu"))
