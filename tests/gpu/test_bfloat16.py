"""In bfloat16 the last bit decides many ties: on the device path neither depths nor trees change one, on a real CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from adaptspec.bench.workloads import read_workloads
from adaptspec.control.cost import CostTable
from adaptspec.engine import assembly, model_set
from adaptspec.engine.assembly import Built, build, make_executor
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.gpu.device_decoder import device_decoder
from adaptspec.request import Request, SamplingParams
from tests.engine.branching import Branched, Shape
from tests.engine.conftest import make_core, run
from tests.engine.policies import COSTS

PROMPT, TOKENS = 16, 12
CONTEXT = 64
CHAIN, TREE = Shape(width=1), Shape(4, 16, beam=True)


def loaded(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Built:
    """The bundled models as a CUDA device has them."""
    monkeypatch.setattr(model_set, "decoder", device_decoder)
    monkeypatch.setattr(assembly, "warm_up", lambda *_: None)
    limits = EngineLimits(max_rows=16)
    config = EngineConfig(device="cpu", dtype="bfloat16", context=CONTEXT, limits=limits, **settings)
    return build(config, costs=lambda *_: CostTable(COSTS))


def prompts(built: Built, count: int) -> list[tuple[int, ...]]:
    """Of as many tokens, from all over the built-in ones."""
    words = " ".join(one.text for some in read_workloads(None, 1).values() for one in some)
    tokens = built.tokenizer.encode(words)
    step = (len(tokens) - PROMPT) // (count - 1)
    return [tuple(tokens[step * i : step * i + PROMPT]) for i in range(count)]


def texts(
    built: Built, count: int, depths: Sequence[int], shape: Shape = CHAIN, *, limits: EngineLimits, also: str = ""
) -> list[tuple[int, ...]]:
    """Every other one greedy; what is drafted by the draft model, or in turn by another one, too."""
    drafters = [one for one in built.drafters if one.name in ("draft-model", also)]
    names = tuple(one.name for one in drafters)
    policy = Branched(names, lambda n, size: [depths[(n + i) % len(depths)] for i in range(size)], shape)
    executor: Any = lambda target, those: make_executor(target, those, limits, eager=True)  # noqa: E731
    target: Any = built.target
    core = make_core(built.tokenizer, target, drafters, {"p": (policy, "coupled")}, limits=limits, executor=executor)
    # Rounds that score a prompt run part by part, all rows of them.
    usual = SamplingParams(TOKENS, ignore_eos=True)
    asked = [
        Request(
            f"r{i}", prompt, replace(usual, temperature=0.8 * (i % 2), seed=i, prompt_logprobs=None if i % 5 else 0)
        )
        for i, prompt in enumerate(prompts(built, count))
    ]
    done = run(core, asked)
    assert {one.error for one in done.values()} == {None}
    drafted = sum(one.stats.accepted for one in done.values())
    assert bool(drafted) == any(depths)
    return [done[request.id].tokens for request in asked]


def changed(some: Sequence[tuple[int, ...]], other: Sequence[tuple[int, ...]]) -> int:
    return sum(a != b for a, b in zip(some, other, strict=True))


@pytest.mark.whole
def test_depths_and_trees_change_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 60, two at a time."""
    built, limits = loaded(monkeypatch), EngineLimits(max_rows=2, prefill_tokens=PROMPT, max_depth=7)
    plain = texts(built, 60, [0], limits=limits)
    for depth, shape in ((3, CHAIN), (7, CHAIN), (7, TREE)):
        assert changed(texts(built, 60, [depth], shape, limits=limits), plain) == 0


@pytest.mark.whole
@pytest.mark.parametrize("exact", ["depths", "strict"])
def test_no_batch_changes_a_text(monkeypatch: pytest.MonkeyPatch, exact: str) -> None:
    """However many run (up to 64), prompts are cut, and drafts branch, in rounds that run whole or part by part."""
    built = loaded(monkeypatch, exact=exact)
    plain = texts(built, 40, [0], limits=EngineLimits(max_rows=1, max_depth=12))
    for rows, prefill in ((3, 9), (16, 256)):
        limits = EngineLimits(max_rows=rows, prefill_tokens=prefill, max_depth=12)
        for shape, also in ((CHAIN, ""), (TREE, "ngram")):
            assert changed(texts(built, 40, [0, 3, 12, 5], shape, limits=limits, also=also), plain) == 0
