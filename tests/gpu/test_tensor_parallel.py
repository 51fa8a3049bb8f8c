"""Two processes, each with half of the target: an error of one costs one request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from adaptspec.engine.build import Built
from adaptspec.engine.engine_config import EngineConfig
from adaptspec.gpu import round as rounds
from adaptspec.gpu.device_decoder import DeviceDecoder
from adaptspec.gpu.draft_steps import DraftSteps
from adaptspec.gpu.rules import RuleBook
from adaptspec.request import Grammar
from tests.exactness.harness import answers
from tests.gpu.engines import DRAWN, GREEDY, LIMITS, TOP_P, built, core_of, requests, same

pytestmark = pytest.mark.whole
CONFIG = EngineConfig(policies=("static-3",), device="cpu", dtype="float32", context=256, limits=LIMITS)
LETTERS = Grammar("start: /[a-z ]{9,}/", "lark")


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
    plain = answers(core_of(pair[0])[0], asked)
    core = core_of(pair[1])[0]
    with monkeypatch.context() as patch:
        breaks(patch, what)
        done = answers(core, asked)
    assert done.pop("r1").error == "MemoryError: broken"
    same(done, plain)
    same(answers(core, asked), plain)
