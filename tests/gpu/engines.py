"""Engines on pretended CUDA and on the CPU, and requests for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from adaptspec.config import EngineConfig
from adaptspec.control.cost_model import CostModel
from adaptspec.engine.build import Built, build, make_executor
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.gpu.tensor_parallel import start_ranks
from adaptspec.models.loading import MakeDecoder
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.results import Completion
from tests.engine.policies import COSTS
from tests.exactness import dictated
from tests.exactness.harness import Case, Notes, answers, assert_same
from tests.exactness.worlds import REFERENCE, ROUNDING, World, reference_decoder

PROMPTS = (
    "Once upon a time, in a village by the sea,",
    "Lily went to the park. Lily went to the park. Lily went to",
    "The dog and the cat",
)
LIMITS = EngineLimits(max_rows=4, prefill_tokens=16)
GREEDY = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
DRAWN = replace(GREEDY, temperature=0.8, seed=1)
TOP_P = replace(DRAWN, top_p=0.9, frequency_penalty=0.3, seed=2)
RULED = replace(DRAWN, top_p=0.9, top_k=50, min_p=0.01, repetition_penalty=1.2, logit_bias={5: -1.0})
CHAINS, COMBS = Case(depths="3"), Case(shape="comb", depths="3")
PLAIN = Case(depths="0")


def built(config: EngineConfig, make: MakeDecoder | None = reference_decoder) -> Built:
    """The models of a configuration; on a device, and shared by ranks, with operators of torch."""
    ranks = partial(start_ranks, operators=REFERENCE)
    return build(config, costs=CostModel(COSTS), make=make, start_ranks=ranks)


def on_both(config: EngineConfig) -> tuple[Built, Built]:
    """The models of a configuration on the CPU and on the device that is pretended at the time."""
    config = replace(
        config,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=LIMITS.max_rows,
        prefill_tokens=LIMITS.prefill_tokens,
        enforce_eager=True,
    )
    cpu, device = built(replace(config, device="cpu"), None), built(replace(config, device="cuda"))
    assert str(device.target.device) == "cuda:0"
    return cpu, device


def core_of(
    one: Built, case: Case = CHAINS, *, eager: bool = True, policy: str | None = None
) -> tuple[EngineCore, Notes]:
    """An engine that drafts as a case says, or the body of a policy."""
    notes = Notes()
    drafters = [drafter for drafter in one.drafters if drafter.name in ("draft-model", "ngram")]
    executor = make_executor(one.target, drafters, replace(LIMITS, max_depth=8), eager=eager)
    world = World(one.target, drafters, one.tokenizer)
    return world.engine([dictated.policy(policy or case.policy)], LIMITS, [notes], executor), notes


def served(one: Built, policies: Sequence[str], asked: Sequence[Request]) -> tuple[dict[str, Completion], Notes]:
    """By policies of the engine, whose clock ticks evenly: they decide the same on both devices."""
    notes = Notes()
    specs = [spec for spec in one.specs if spec.name in policies]
    return answers(World(one.target, one.drafters, one.tokenizer).engine(specs, LIMITS, [notes]), asked), notes


def requests(one: Built, *params: SamplingParams, policies: Sequence[str | None] = (None,)) -> list[Request]:
    texts = [tuple(one.tokenizer.encode(prompt)) for prompt in PROMPTS]
    return [
        Request(f"r{i}", texts[i % len(texts)], each, SpeculationParams(policies[i % len(policies)]))
        for i, each in enumerate(params)
    ]


def same(mine: dict[str, Completion], its: dict[str, Completion]) -> None:
    for name, one in mine.items():
        assert one.error is None
        assert_same(one, its[name], ROUNDING)
