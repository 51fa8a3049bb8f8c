"""Two processes, each with half of the target, give one process's text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from adaptspec.control.cost import CostTable
from adaptspec.engine.assembly import Built, build
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.gpu import round as rounds
from adaptspec.gpu.device_decoder import DeviceDecoder
from adaptspec.gpu.draft_steps import DraftSteps
from adaptspec.gpu.rules import RuleBook
from adaptspec.request import SamplingParams
from tests.engine.branching import Shape
from tests.engine.conftest import run
from tests.engine.policies import COSTS
from tests.engine.test_faults import run as recovering
from tests.gpu.test_device_executor import ASKED, LETTERS, LIMITS, dictated, requests, same, served

pytestmark = pytest.mark.whole
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


@pytest.mark.parametrize("policy", POLICIES)
def test_the_text_is_that_of_one_process(pair: tuple[Built, Built], policy: str) -> None:
    """Greedy, drawn, and drawn by rules that need all scores in one place; up to four rows, prompts in chunks."""
    asked = requests(pair[0], GREEDY, DRAWN, TOP_P, replace(DRAWN, seed=3), GREEDY, policies=[policy])
    for some in (asked, asked[:2] + asked[3:]):
        (plain, _), (done, notes) = (served(one, POLICIES, some) for one in pair)
        same(done, plain)
        assert policy != "static-3" or sum(int(record.accepted.sum()) for record in notes.records) > 0


def test_what_requests_ask_for(pair: tuple[Built, Built]) -> None:
    """Scores of prompts and answers, stops, biases, penalties, grammars."""
    params = [replace(base, **ASKED[name]) for name, base in zip(ASKED, [GREEDY, DRAWN] * 4, strict=True)]
    asked = requests(pair[0], *params, policies=["static-3"])
    (plain, _), (done, _) = (served(one, POLICIES, asked) for one in pair)
    same(done, plain)


def test_trees_keep_their_paths_on_all_ranks(pair: tuple[Built, Built]) -> None:
    asked = requests(pair[0], GREEDY, replace(DRAWN, logprobs=1), DRAWN)
    cores = [dictated(one, Shape(8, 32, beam=True), 4) for one in pair]
    plain, done = (run(core, asked) for core, _ in cores)
    same(done, plain)
    assert any(r.branches is not None and r.branches.nodes.max(initial=0) > 4 for r in cores[1][1].records)


def test_rows_that_leave_take_nobody_along(pair: tuple[Built, Built]) -> None:
    """One is aborted while its round is under way; the others, and who comes after it, have the text they would."""
    texts = []
    for one in pair:
        core, done = dictated(one)[0], {}
        for request in requests(one, DRAWN, replace(DRAWN, max_tokens=200), GREEDY):
            core.add(request)
        for step in range(200):
            if step == 9:
                core.abort("r1")
                core.add(replace(requests(one, DRAWN)[0], id="late"))
            done.update({d.request_id: d.completion for d in core.step() if d.completion is not None})
            if core.idle:
                break
        texts.append({name: done[name] for name in ("r0", "r2", "late")})
    same(*texts)


# What a request asks for that rank 0 does alone, in whose rounds it is broken below.
ALONE = {
    "mask": replace(DRAWN, grammar=LETTERS, ignore_eos=False),
    "log-softmax": replace(DRAWN, logprobs=2),
    "draft step": replace(DRAWN, temperature=0.5),
}


def breaks(patch: pytest.MonkeyPatch, what: str) -> None:
    """Have it fail on this rank, where drafts are made or judged, for the request that asks for it."""
    place: tuple[Any, str] = {
        "mask": (RuleBook, "_allowed"),
        "log-softmax": (rounds, "_told"),
        "draft step": (DraftSteps, "draw"),
    }[what]
    works = getattr(*place)

    def fails(*given: Any, **more: Any) -> Any:
        if what == "mask":
            hit = bool(given[2])  # not before the first drafted token
        elif what == "log-softmax":
            hit = given[2] == 2 and len(given[0]) > 1  # not of a first token
        else:
            host = given[0].plan.host
            hit = (host["temperatures"][host["depths"] > 0] == 0.5).any()
        if hit:
            raise MemoryError("broken")
        return works(*given, **more)

    patch.setattr(*place, fails)


@pytest.mark.parametrize("what", ALONE)
def test_an_error_of_rank_0_alone_costs_one_request(
    pair: tuple[Built, Built], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Who runs beside it, and who comes next, has the text it would: ranks are where each other is."""
    asked = requests(pair[0], GREEDY, ALONE[what], TOP_P)
    plain = run(dictated(pair[0])[0], asked)
    core = dictated(pair[1])[0]
    with monkeypatch.context() as patch:
        breaks(patch, what)
        done = recovering(core, asked)
    assert done.pop("r1").error == "MemoryError: broken"
    same(done, plain)
    same(run(core, asked), plain)
