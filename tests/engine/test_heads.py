"""Heads that draft from the target's states: text is the target's own, whatever they draft."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from adaptspec.control.cost import CostTable
from adaptspec.control.language.library import find_policy
from adaptspec.engine import assembly, model_set
from adaptspec.engine.assembly import Built, build
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.engine.sync_engine import Engine
from adaptspec.models.heads.eagle import EagleRunner
from adaptspec.models.kv_cache import CacheLimits
from adaptspec.request import Grammar, Reasoning, Request, SamplingParams, SpeculationParams
from adaptspec.types import FinishReason
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


def built(make_model: MakeModel, head: str | None, *policies: str, rows: int = 4, **more: int) -> Built:
    """A tiny target of four layers with a golden head."""
    model = make_model("llama", hidden_size=16, num_hidden_layers=4)
    draft = None if head is None else str(HEADS / head)
    config = EngineConfig(str(model), draft, policies, limits=EngineLimits(max_rows=rows), **more)  # type: ignore[arg-type]
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
    drafted = [one.stats.drafted for one in answers]
    assert all(drafted) if policy == "static-3" else any(drafted)
    if policy == "goodput-trees":
        assert sum(drafted) < sum(len(one.tokens) for one in answers)  # it has learned to leave them


RULES = {
    "schema": replace(SAMPLED, grammar=Grammar('{"type": "array", "items": {"enum": ["aa", "ab"]}, "minItems": 2}')),
    "lark": replace(GREEDY, grammar=Grammar('start: /(ab|ba){2,12}/ ("!" | "?")', "lark")),
    "regex": replace(SAMPLED, grammar=Grammar("(ab|ba)+[!?]{1,3}", "regex")),
    "behind a reasoning": replace(
        SAMPLED, grammar=Grammar("(ab|ba){2,9}", "regex", reasoning=Reasoning("<", "e", True))
    ),
    "penalties": replace(SAMPLED, repetition_penalty=1.2, frequency_penalty=0.7, presence_penalty=0.4),
    "truncated": replace(SAMPLED, top_p=0.8, top_k=20, min_p=0.02, logit_bias={40: 2.0, 41: -3.0}),
    "ends": replace(GREEDY, min_tokens=12, logprobs=2, prompt_logprobs=1),
}


@pytest.mark.parametrize("head", ["eagle3", "dflash", "medusa"])
def test_rules_and_methods_hold_for_drafts_of_heads(make_model: MakeModel, tmp_path: Path, head: str) -> None:
    """What changes scores changes the same ones with drafts as without; every lossless method takes the likeliest
    token, and what the weighing ones draw at random is whole text."""
    place = head
    if head == "medusa":
        medusa(tmp_path / head, own=True)
        place = str(tmp_path / head)
    files = [tmp_path / f"{method}.yaml" for method in ("rejection", "block")]
    for file in files:
        text = find_policy("static-3").read_text().replace("name: static-3", f"name: {file.stem}")
        file.write_text(f"{text}  verification: {{method: {file.stem}}}\n")
    own, plain = built(make_model, place, "static-3", *map(str, files)), built(make_model, None, "off")
    engine, reference = Engine(own.core, own.tokenizer), Engine(plain.core, plain.tokenizer)
    for name, sampling in RULES.items():
        wanted, answers = (one.generate(PROMPTS, sampling) for one in (reference, engine))
        assert [one.tokens for one in answers] == [one.tokens for one in wanted], name
        assert any(one.stats.drafted for one in answers), name
    wanted = reference.generate(PROMPTS, GREEDY)
    for file in files:
        how = SpeculationParams(policy=file.stem)
        answers = engine.generate(PROMPTS, GREEDY, how)
        assert [one.tokens for one in answers] == [one.tokens for one in wanted], file.stem
        drawn = engine.generate(PROMPTS, SAMPLED, how)
        assert {one.finish for one in drawn} <= {FinishReason.LENGTH, FinishReason.STOP}
        assert all(one.stats.drafted for one in (*answers, *drawn))


def test_a_head_that_no_policy_asks_for_hears_nothing(make_model: MakeModel) -> None:
    """Until one does: then its rows draft, also beside rows that do not, and those that began unheard."""
    own, plain = built(make_model, "eagle3", "off", "static-3"), built(make_model, None, "off")
    head = own.loaded.draft
    assert isinstance(head, EagleRunner)
    wanted = Engine(plain.core, plain.tokenizer).generate(PROMPTS[:2], GREEDY)
    engine = Engine(own.core, own.tokenizer)
    ids = [tuple(own.tokenizer(text)["input_ids"]) for text in PROMPTS[:2]]
    own.core.add(Request("plain", ids[0], GREEDY, SpeculationParams(policy="off")))
    for _ in range(4):
        own.core.step()
    assert (head.unread, head.listens, head.free_memory) == (0, False, 1.0)
    own.core.add(Request("drafts", ids[1], GREEDY, SpeculationParams(policy="static-3")))
    heard, done = 0, {}
    while not own.core.idle:
        done |= {delta.request_id: delta.completion for delta in own.core.step() if delta.completion is not None}
        heard = max(heard, head.unread)
    assert [done[name].tokens for name in ("plain", "drafts")] == [one.tokens for one in wanted]
    assert (done["plain"].stats.drafted, done["drafts"].stats.drafted > 0) == (0, True)
    assert heard > 0
    assert head.unread == 0
    assert engine.generate(PROMPTS[:1], GREEDY)[0].tokens == wanted[0].tokens


def test_rows_that_give_way_begin_anew(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the cache is too small for all, and nothing is left of anybody at the end."""
    monkeypatch.setattr(model_set, "CacheLimits", partial(CacheLimits, block_size=8))
    own = built(make_model, "eagle3", "static-3", context=64, cache_tokens=128)
    plain = built(make_model, None, "off", context=64, cache_tokens=128)
    long = [prompt * 3 for prompt in PROMPTS]
    sampling = SamplingParams(temperature=0.0, max_tokens=24)
    wanted = Engine(plain.core, plain.tokenizer).generate([text[:30] for text in long], sampling)
    left: list[int] = []
    leave = own.core.executor.leave
    monkeypatch.setattr(own.core.executor, "leave", lambda row: (left.append(row), leave(row)))
    answers = Engine(own.core, own.tokenizer).generate([text[:30] for text in long], sampling)
    assert len(left) > len(answers)  # some gave way
    assert all(one.stats.drafted for one in answers)
    assert [one.tokens for one in answers] == [one.tokens for one in wanted]
    head = own.loaded.draft
    assert isinstance(head, EagleRunner)
    assert head.unread == 0
    assert head.free_memory == 1.0
