"""In bfloat16 texts depend on how many tokens a pass has: how many texts do, by depth and shape of the drafts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import pytest

from adaptspec.bench.exactness import Reference, _alone, _fixed
from adaptspec.bench.workloads import encode, read_workloads
from adaptspec.control.cost import CostTable
from adaptspec.engine import assembly
from adaptspec.engine.assembly import EngineConfig, build
from tests.engine.policies import COSTS
from tests.gpu.pretend import PretendCuda

WAYS = ("0", "3", "7", "tree")
CUTS = (80, 1000)  # characters: the built-in prompts whole, and their beginnings
TOKENS = 32


def changed_texts(device: str, dtype: str) -> dict[str, int]:
    """Of 20 greedy texts, how many are not those of plain decoding, by what the draft model drafts.

    `device` cpu, or cuda pretended. `adaptspec bench exactness --dtype bfloat16 --drafter draft-model` asks the same of
    more prompts, and holds them against transformers.
    """
    with ExitStack() as stack:
        if device == "cuda":
            cuda = stack.enter_context(PretendCuda())
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setattr(assembly, "ThreadPoolExecutor", partial(ThreadPoolExecutor, initializer=cuda.enter_thread))
        config = EngineConfig(device=device, dtype=dtype, context=512)
        built = build(config, costs=lambda *_: CostTable(COSTS))
        built = replace(built, drafters=tuple(one for one in built.drafters if one.name == "draft-model"))
        prompts = [
            Reference(encode(built.tokenizer, replace(prompt, text=prompt.text[:cut]), 400), (), ())
            for prompts in read_workloads(None, 1).values()
            for prompt in prompts
            for cut in CUTS
        ]
        cores = {names["depth"]: core for names, core in _fixed(built, config)}
        cores["plain"] = cores["0"]
        texts = {way: [done.tokens for done in _alone(cores[way](), prompts, TOKENS)] for way in ("plain", *WAYS)}
    return {way: sum(a != b for a, b in zip(texts["plain"], texts[way], strict=True)) for way in WAYS}


@pytest.mark.whole
def test_texts_that_depths_change_on_the_cpu() -> None:
    """Until products have fixed shapes, ties are many, and processors break them in their own ways: half at most."""
    found = changed_texts("cpu", "bfloat16")
    assert found.pop("0") == 0
    assert max(found.values()) <= 10, found
