"""Two processes, each with half of the target, give one process's text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from adaptspec.control.cost import CostTable
from adaptspec.engine.assembly import Built, assemble, build
from adaptspec.engine.core import EngineLimits
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.gpu.device_decoder import DeviceDecoder
from adaptspec.request import Request, SamplingParams, SpeculationParams
from adaptspec.types import Completion
from tests.engine.branching import Shape
from tests.engine.conftest import Notes, run
from tests.engine.policies import COSTS
from tests.gpu.test_device_executor import ASKED, dictated, same

PROMPTS = (
    "Once upon a time, in a village by the sea, there was a boat that nobody had ever seen sail, and",
    "Lily went to the park. Lily went to the park. Lily went to",
    "The dog and the cat",
)
LIMITS = EngineLimits(max_rows=4, prefill_tokens=16)
POLICIES = ("off", "static-3", "goodput")
CONFIG = EngineConfig(policies=POLICIES, device="cpu", dtype="float32", context=256, limits=LIMITS)
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
DRAWN = replace(GREEDY, temperature=0.8, seed=1)
TOP_P = replace(DRAWN, top_p=0.9, frequency_penalty=0.3, seed=2)


def built(config: EngineConfig) -> Built:
    return build(config, costs=lambda *_: CostTable(COSTS))


def close(one: Built) -> None:
    assert isinstance(one.target, DeviceDecoder)
    one.target.group.close()


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Built, Built]]:
    """The bundled models in one process and in two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # both processes of this test run here
    alone, shared = (built(replace(CONFIG, tensor_parallel_size=size)) for size in (1, 2))
    yield alone, shared
    close(shared)
    torch.set_num_threads(threads)


def requests(one: Built, params: Sequence[SamplingParams], policies: Sequence[str]) -> list[Request]:
    texts = [tuple(one.tokenizer.encode(prompt)) for prompt in PROMPTS]
    return [
        Request(f"r{i}", texts[i % 3], sampling, SpeculationParams(policies[i % len(policies)]))
        for i, sampling in enumerate(params)
    ]


def served(one: Built, asked: Sequence[Request]) -> tuple[dict[str, Completion], Notes]:
    notes = Notes()
    core = assemble(
        one.target,
        one.drafters,
        one.tokenizer,
        specs=[spec for spec in one.specs if spec.name in POLICIES],
        costs=CostTable(COSTS),
        sinks=[notes],
        limits=LIMITS,
    )
    return run(core, asked), notes


@pytest.mark.parametrize("policy", POLICIES)
def test_the_text_is_that_of_one_process(pair: tuple[Built, Built], policy: str) -> None:
    """Greedy, drawn, and drawn by rules that need all scores in one place; up to four rows, prompts in chunks."""
    asked = requests(pair[0], [GREEDY, DRAWN, TOP_P, replace(DRAWN, seed=3), GREEDY], [policy])
    for some in (asked, asked[:2] + asked[3:]):
        (plain, _), (done, notes) = (served(one, some) for one in pair)
        same(done, plain)
        assert policy != "static-3" or sum(int(record.accepted.sum()) for record in notes.records) > 0


def test_what_requests_ask_for(pair: tuple[Built, Built]) -> None:
    """Scores of prompts and answers, stops, biases, penalties, grammars."""
    params = [replace(base, **ASKED[name]) for name, base in zip(ASKED, [GREEDY, DRAWN] * 4, strict=True)]
    asked = requests(pair[0], params, ["static-3"])
    (plain, _), (done, _) = (served(one, asked) for one in pair)
    same(done, plain)


def test_trees_keep_their_paths_on_all_ranks(pair: tuple[Built, Built]) -> None:
    asked = requests(pair[0], [GREEDY, replace(DRAWN, logprobs=1), DRAWN], ["p"])
    cores = [dictated(one, Shape(8, 32, beam=True), 4) for one in pair]
    plain, done = (run(core, asked) for core, _ in cores)
    same(done, plain)
    assert any(r.branches is not None and r.branches.nodes.max(initial=0) > 4 for r in cores[1][1].records)


def test_rows_that_leave_take_nobody_along(pair: tuple[Built, Built]) -> None:
    """One is aborted while its round is under way; the others, and who comes after it, have the text they would."""
    texts = []
    for one in pair:
        core, done = dictated(one)[0], {}
        for request in requests(one, [DRAWN, replace(DRAWN, max_tokens=200), GREEDY], ["p"]):
            core.add(request)
        for step in range(200):
            if step == 9:
                core.abort("r1")
                core.add(replace(requests(one, [DRAWN], ["p"])[0], id="late"))
            done.update({d.request_id: d.completion for d in core.step() if d.completion is not None})
            if core.idle:
                break
        texts.append({name: done[name] for name in ("r0", "r2", "late")})
    same(*texts)
