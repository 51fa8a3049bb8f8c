"""Target and draft model on two devices: the same text, and drafts of another device still run whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import pytest

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.engine.assembly import Built
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.engine_config import EngineConfig, model_place
from adaptspec.errors import ConfigError
from adaptspec.gpu.device_decoder import device_decoder
from adaptspec.models.loading import load_model
from adaptspec.request import Request, SamplingParams
from adaptspec.types import Completion
from tests.exactness.harness import answers
from tests.gpu.engines import built, same
from tests.gpu.pretend import PretendCuda

pytestmark = pytest.mark.whole

LIMITS = EngineLimits(max_rows=4, prefill_tokens=16)
CONFIG = EngineConfig(policies=("static-3", "off"), dtype="float32", context=128, limits=LIMITS, eager=True)
GREEDY = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
PARAMS = (
    GREEDY,
    replace(GREEDY, temperature=0.8, seed=1),
    replace(GREEDY, temperature=0.8, seed=2, top_p=0.9, frequency_penalty=0.5),
)


@pytest.fixture
def cuda() -> Iterator[PretendCuda]:
    with PretendCuda() as device:
        yield device


def texts(one: Built) -> dict[str, Completion]:
    """Of requests that ask for different things, under the first policy."""
    prompt = tuple(one.tokenizer.encode("Lily went to the park. Lily went to"))
    return answers(one.core, [Request(str(i), prompt, params) for i, params in enumerate(PARAMS)])


def same_drafts(mine: dict[str, Completion], its: dict[str, Completion]) -> None:
    """The same answers, of as many accepted tokens."""
    same(mine, its)
    assert sum(one.stats.accepted for one in mine.values()) == sum(one.stats.accepted for one in its.values()) > 0


def test_a_draft_on_the_cpu_serves_a_target_on_the_device(cuda: PretendCuda) -> None:
    """And the other way round: scores go to where the target's are."""
    plain = texts(built(replace(CONFIG, device="cpu")))
    for target, draft in (("cuda", "cpu"), ("cpu", "cuda")):
        one = built(replace(CONFIG, device=target, draft_device=draft))
        (drafter,) = (drafter for drafter in one.drafters if isinstance(drafter, DraftModelDrafter))
        assert [one.target.device.type, drafter.runner.device.type] == [target, draft]
        same_drafts(texts(one), plain)


def test_a_device_that_is_not_there_says_how_many_are(cuda: PretendCuda) -> None:
    with pytest.raises(ConfigError, match="cuda:1, but the CUDA devices here are 1, from cuda:0 on"):
        load_model(model_place("bundled", "draft"), device="cuda:1")


def test_drafts_run_whole_on_a_device_of_their_own(cuda: PretendCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan goes there, and the drafted tokens come back. The CPU is as good as another: what mixes them fails."""
    plain = texts(built(replace(CONFIG, device="cpu")))
    apart = built(replace(CONFIG, device="cuda", draft_device="cpu"), make=device_decoder)
    parts = mock.Mock(side_effect=AssertionError)
    monkeypatch.setattr(DraftModelDrafter, "propose", parts)  # by which drafts run part by part
    same_drafts(texts(apart), plain)
    assert not parts.called
