"""Texts of plain vLLM, and of vLLM with a draft, random depths, requests that are aborted, and too small a cache.

`texts.py PROMPTS`: prints how many differ.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from math import nan
from typing import Any

import numpy as np
from engines import RandomPilot, make, prompts, scheduler_of
from vllm import LLM, SamplingParams

from adaptspec.hosts.vllm.contract import EXTENSION, SKIPPED
from adaptspec.rounds import Timing

ROWS = 16
Texts = dict[int, tuple[int, ...]]


def texts(llm: LLM, asked: list[tuple[str, int]], aborted: set[int], seed: int) -> Texts:
    """The tokens of each prompt, by its number; some are aborted at a random step."""
    engine, chance = llm.llm_engine, random.Random(seed)
    for number, (prompt, tokens) in enumerate(asked):
        engine.add_request(str(number), prompt, SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True))
    wrote, left = {}, set(aborted)
    while engine.has_unfinished_requests():
        for output in engine.step():
            wrote[int(output.request_id)] = tuple(output.outputs[0].token_ids)
            if int(output.request_id) in left and chance.random() < 0.2:
                left.remove(int(output.request_id))
                engine.abort_request([output.request_id])
    return {number: tokens for number, tokens in wrote.items() if number not in aborted}


def count_preemptions(scheduler: Any) -> list[str]:
    """The requests that a scheduler preempts from now on."""
    seen: list[str] = []
    preempt = scheduler._preempt_request

    def noted(request: Any, *args: Any, **kwargs: Any) -> None:
        seen.append(request.request_id)
        preempt(request, *args, **kwargs)

    scheduler._preempt_request = noted
    return seen


def count_skipped(llm: LLM) -> Counter[str]:
    """Steps that asked for no draft, and those of them and of others in which the draft ran."""
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    propose, execute, seen = runner.drafter.propose, runner.execute_model, Counter[str]()

    def executed(step: Any, *args: Any, **kwargs: Any) -> Any:
        seen["skipped"] += getattr(step, SKIPPED, False)
        return execute(step, *args, **kwargs)

    def proposed(*args: Any, **kwargs: Any) -> Any:
        seen["proposed in vain" if runner.adaptspec_skips else "proposed"] += 1
        return propose(*args, **kwargs)

    runner.execute_model, runner.drafter.propose = executed, proposed
    return seen


def differing(plain: Texts, ours: Texts, among: set[int] | None = None) -> list[int]:
    """The numbers of prompts whose texts are not the same, or are missing."""
    return sorted(at for at in plain if (among is None or at in among) and plain[at] != ours.get(at))


def faulty(pilot: Any) -> Iterator[tuple[str, Any]]:
    """What goes wrong, one after the other, in what a policy is asked and told."""
    decide, learn = pilot._controller.decide, pilot._controller.learn
    calls = count()

    def raises(*args: Any) -> Any:
        if next(calls) % 3 == 0:
            raise ArithmeticError("every third call")
        return decide(*args)

    def deep(*args: Any) -> Any:
        decision = decide(*args)
        return replace(decision, depths=np.full_like(decision.depths, 99))  # policies keep the arrays that they give

    pilot._controller.decide = raises
    yield "raises", pilot
    pilot._controller.decide = deep
    yield "deep", pilot
    pilot._controller.decide = decide
    pilot._controller.learn = lambda record: learn(replace(record, timing=Timing(nan, nan, nan)))
    yield "nan", pilot
    pilot._controller.learn, pilot._controller.decide = learn, None
    yield "gone", pilot


def main(number: int) -> None:
    """Prints one JSON object."""
    chance = random.Random(0)
    asked = [(prompt, chance.randint(1, 120)) for prompt in prompts(number * 6 // 5, chance)]
    aborted = set(chance.sample(range(len(asked)), len(asked) - number))
    plain = texts(make(ROWS, deepest=0, dtype="float32"), asked, aborted, 0)
    settings = {"policy": "goodput", "skip-draft": True}
    small = {"block_size": 32, "num_gpu_blocks_override": 60}
    llm = make(ROWS, adaptive=settings, dtype="float32", worker_extension_cls=EXTENSION, **small)
    scheduler = scheduler_of(llm)
    preempted, skipped = count_preemptions(scheduler), count_skipped(llm)
    own, pilot = scheduler._pilot, RandomPilot(0)
    scheduler._pilot = pilot
    ours = texts(llm, asked, aborted, 1)
    told = {"compared": len(plain), "differing": differing(plain, ours), "preempted": len(preempted)}
    told |= {"errors": pilot.errors, **pilot.told, **skipped}
    scheduler._pilot = own
    few = asked[:64]
    texts(llm, few, set(), 0)  # it measures first, and decides then
    for fault, broken in faulty(own):
        before = broken.errors
        wrote = texts(llm, few, set(), 0)
        told[fault] = {"differing": differing(plain, wrote, {*range(64)} - aborted), "errors": broken.errors - before}
    print(json.dumps(told | {"detached": own.detached}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
