"""Heads that draft from the target's states: text is the target's own, whatever they draft."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptspec.control.cost import CostTable
from adaptspec.engine import assembly
from adaptspec.engine.assembly import Built, build
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.engine.sync_engine import Engine
from adaptspec.models.heads.eagle import EagleRunner
from adaptspec.request import SamplingParams
from tests.conftest import MakeModel
from tests.engine.policies import COSTS
from tests.models.heads.golden import HEADS
from tests.models.heads.test_block import medusa

PROMPTS = ["Once upon a time", "def add(a, b):", "The", "abcabcabcabc" * 4, "{}", "1 2 3 4 5 6 7 8"]
SAMPLED = SamplingParams(temperature=0.8, seed=3, max_tokens=20)
GREEDY = SamplingParams(temperature=0.0, max_tokens=20)


@pytest.fixture(autouse=True)
def _cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "warm_up", lambda *_: None)


def built(make_model: MakeModel, head: str | None, policy: str, *, rows: int = 4, **more: int) -> Built:
    """A tiny target of four layers with a golden head."""
    model = make_model("llama", hidden_size=16, num_hidden_layers=4)
    draft = None if head is None else str(HEADS / head)
    config = EngineConfig(str(model), draft, (policy,), limits=EngineLimits(max_rows=rows), **more)  # type: ignore[arg-type]
    return build(config, costs=lambda *_: CostTable(COSTS))


@pytest.mark.parametrize("policy", ["static-3", "goodput-trees"])
@pytest.mark.parametrize("head", ["eagle3", "eagle3.1", "mtp", "peagle", "dflash", "dspark-rnn", "medusa"])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_text_is_that_of_plain_decoding(
    make_model: MakeModel, tmp_path: Path, head: str, policy: str, sampling: SamplingParams
) -> None:
    """Alone and in a batch, with chains and with branches."""
    if head == "medusa":
        head = str(tmp_path / head)
        medusa(Path(head), own=False)
    own, plain = built(make_model, head, policy), built(make_model, None, "off")
    engine, reference = Engine(own.core, own.tokenizer), Engine(plain.core, plain.tokenizer)
    wanted = [one.tokens for one in reference.generate(PROMPTS, sampling)]
    answers = engine.generate(PROMPTS, sampling)
    assert [one.tokens for one in answers] == wanted
    assert engine.generate(PROMPTS[:1], sampling)[0].tokens == wanted[0]
    if policy == "static-3":
        assert all(one.stats.drafted for one in answers)


def test_rows_that_give_way_begin_anew(make_model: MakeModel) -> None:
    """Where the cache is too small for all, and nothing is left of anybody at the end."""
    own = built(make_model, "eagle3", "static-3", context=64, cache_tokens=128)
    plain = built(make_model, None, "off", context=64, cache_tokens=128)
    long = [prompt * 3 for prompt in PROMPTS]
    sampling = SamplingParams(temperature=0.0, max_tokens=24)
    wanted = Engine(plain.core, plain.tokenizer).generate([text[:30] for text in long], sampling)
    answers = Engine(own.core, own.tokenizer).generate([text[:30] for text in long], sampling)
    assert [one.tokens for one in answers] == [one.tokens for one in wanted]
    head = own.loaded.draft
    assert isinstance(head, EagleRunner)
    assert head.unread == 0
    assert head.free_memory == 1.0
