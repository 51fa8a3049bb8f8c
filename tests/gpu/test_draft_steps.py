"""Target and draft model on two devices: the same text, and drafts of another device still run whole."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest

from adaptspec.control.cost import CostTable
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.engine import assembly, model_set
from adaptspec.engine.assembly import Built, build, make_executor
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.engine_config import EngineConfig, model_place
from adaptspec.errors import ConfigError
from adaptspec.gpu.device_decoder import device_decoder
from adaptspec.gpu.round import DeviceRounds
from adaptspec.gpu.round_plan import RoundPlan, RoundResult
from adaptspec.models.loading import load_model
from adaptspec.request import Request, SamplingParams
from adaptspec.types import Completion
from tests.conftest import MakeModel
from tests.engine.branching import Branched, Shape
from tests.engine.conftest import make_core, run
from tests.engine.policies import COSTS
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
MANY: tuple[dict[str, Any], ...] = tuple({"max_tokens": 24, "temperature": 0.8, "seed": seed} for seed in range(6))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendCuda]:
    with PretendCuda() as device:
        loading = partial(ThreadPoolExecutor, initializer=device.enter_thread)
        monkeypatch.setattr(assembly, "ThreadPoolExecutor", loading)
        yield device


def built(config: EngineConfig) -> Built:
    return build(config, costs=lambda *_: CostTable(COSTS))


def texts(one: Built) -> list[Completion]:
    prompt = tuple(one.tokenizer.encode("Lily went to the park. Lily went to"))
    asked = [Request(str(i), prompt, params) for i, params in enumerate(PARAMS)]
    return list(run(one.core, asked).values())


def same(mine: list[Completion], its: list[Completion]) -> None:
    assert [(one.tokens, one.error) for one in mine] == [(one.tokens, None) for one in its]
    assert sum(one.stats.accepted for one in mine) == sum(one.stats.accepted for one in its) > 0


def test_a_draft_on_the_cpu_serves_a_target_on_the_device(cuda: PretendCuda) -> None:
    """And the other way round: scores go to where the target's are."""
    plain = texts(built(replace(CONFIG, device="cpu")))
    for target, draft in (("cuda", "cpu"), ("cpu", "cuda")):
        one = built(replace(CONFIG, device=target, draft_device=draft))
        (drafter,) = (drafter for drafter in one.drafters if isinstance(drafter, DraftModelDrafter))
        assert [one.target.device.type, drafter.runner.device.type] == [target, draft]
        same(texts(one), plain)


def test_a_device_that_is_not_there_says_how_many_are(cuda: PretendCuda) -> None:
    with pytest.raises(ConfigError, match="cuda:1, but the CUDA devices here are 1, from cuda:0 on"):
        load_model(model_place("bundled", "draft"), device="cuda:1")


def test_drafts_run_whole_on_a_device_of_their_own(cuda: PretendCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan goes there, and the drafted tokens come back. The CPU is as good as another: what mixes them fails."""
    plain = texts(built(replace(CONFIG, device="cpu")))
    monkeypatch.setattr(model_set, "decoder", device_decoder)
    apart = built(replace(CONFIG, device="cuda", draft_device="cpu"))
    parts = mock.Mock(side_effect=AssertionError)
    monkeypatch.setattr(DraftModelDrafter, "propose", parts)  # by which drafts run part by part
    same(texts(apart), plain)
    assert not parts.called


@pytest.mark.parametrize(
    "sizes",
    [pytest.param((268, 260), id="smaller"), pytest.param((260, 300), id="larger", marks=pytest.mark.whole)],
)
def test_a_draft_of_another_vocabulary(
    cuda: PretendCuda, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int]
) -> None:
    """Of a vocabulary that is padded for more tokens than the tokenizer has, neither model draws the padding."""
    target, draft = (make_model(seed=0, vocab_size=size, num_hidden_layers=1) for size in sizes)
    config = replace(CONFIG, model=str(target), draft=str(draft))
    drafted, read = list[int](), DeviceRounds.result

    def result(self: DeviceRounds, plan: RoundPlan) -> RoundResult:
        found = read(self, plan)
        nodes = found.counts + (found.picks >= 0).sum(axis=1)
        drafted.extend(found.drafted[np.arange(found.drafted.shape[1]) < nodes[:, None]].tolist())
        return found

    monkeypatch.setattr(DeviceRounds, "result", result)
    plain, device = (built(replace(config, device=one)) for one in ("cpu", "cuda"))
    assert [one.loaded.draft.info.vocab_size for one in (plain, device) if one.loaded.draft] == [sizes[1]] * 2
    for shape in (Shape(1, 3), Shape(4, 31, 0.001)):
        asked = [Request(str(i), (40 + i, 41, 42), replace(GREEDY, **more)) for i, more in enumerate(MANY)]
        served = []
        for one in (plain, device):
            policy = Branched(("draft-model",), lambda _, size: [3] * size, shape)
            whole: Any = one.target
            executor: Any = partial(make_executor, limits=LIMITS, eager=True)
            policies = {"p": (policy, "coupled")}
            core = make_core(one.tokenizer, whole, one.drafters, policies, limits=LIMITS, executor=executor)
            served.append(run(core, asked))
        assert {name: (one.tokens, one.error) for name, one in served[1].items()} == {
            name: (one.tokens, None) for name, one in served[0].items()
        }
        tokens = [token for one in served[1].values() for token in one.tokens]
        assert max(tokens) < min(sizes)
        assert len(drafted) > 20
        assert max(drafted) < min(sizes)
        drafted.clear()
