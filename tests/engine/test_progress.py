"""The engine reports progress within a round, in proportion to its work: a long round differs from a hang."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from transformers import PreTrainedTokenizerFast

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.core import EngineLimits
from adaptspec.models.runner import Forward, Packed
from adaptspec.progress import report_progress, set_progress_callback
from adaptspec.request import Grammar, Request, SamplingParams
from adaptspec.rounds import RoundRecord
from tests.conftest import MakeModel
from tests.exactness import dictated
from tests.exactness.harness import Case, Notes
from tests.exactness.worlds import CONTEXT, World, table
from tests.fakes import TableRunner
from tests.models.packing import load_runner

ROWS, DEEP, LAYERS, DRAFT_LAYERS = 4, 24, 4, 3
GREEDY = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
# Deep drafts, of chains and trees; grammars, of which each verified token has a mask; and noise and truncation of a
# large vocabulary, which at many positions take longer than a forward pass.
ASKED = {
    "chain": (1, GREEDY),
    "tree": (3, GREEDY),
    "grammar": (1, SamplingParams(60, temperature=0.0, grammar=Grammar("start: /[a-z]{200}/", "lark"))),
    "noise": (1, SamplingParams(60, top_p=0.9, seed=1, ignore_eos=True)),
}


class Counted(Notes):
    """A sink that counts the reports of progress within each round: from its record to that of the round before."""

    engine: AsyncEngine
    last = 0

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[tuple[RoundRecord, int]] = []

    def emit(self, record: RoundRecord) -> None:
        heartbeat = self.engine.heartbeat
        assert heartbeat is not None
        self.rounds.append((record, heartbeat - self.last))
        self.last = heartbeat


@pytest.mark.parametrize("name", ASKED)
async def test_all_work_of_a_round_is_reported(
    tokenizer: PreTrainedTokenizerFast, make_model: MakeModel, name: str
) -> None:
    """Each layer of each draft step and of the verify pass, each mask, and each position that a token is drawn for."""
    width, params = ASKED[name]
    counter = Counted()
    target = load_runner(make_model("llama", num_hidden_layers=LAYERS), max_rows=ROWS)
    draft = load_runner(make_model("llama", seed=1, num_hidden_layers=DRAFT_LAYERS), max_rows=ROWS)
    spec = dictated.policy(Case(shape="comb", depths=str(DEEP), width=width, nodes=64).policy)
    limits = EngineLimits(ROWS, prefill_tokens=64, max_depth=DEEP)
    core = World(target, [DraftModelDrafter(draft)], tokenizer).engine([spec], limits, [counter])
    counter.engine = AsyncEngine(core)
    try:
        prompts = [tuple(range(10, 160)), *[(10, 11, 12)] * (ROWS - 1)]
        asked = [Request(f"r{i}", prompt, replace(params, seed=i)) for i, prompt in enumerate(prompts)]
        done = await asyncio.gather(*(counter.engine.generate(request) for request in asked))
    finally:
        await asyncio.to_thread(counter.engine.close)
    assert all(completion.error is None for completion in done)
    assert max(record.draft_steps for record, _ in counter.rounds) >= 10
    for record, reports in counter.rounds:
        steps, tokens = record.draft_steps, record.target_tokens
        expected = LAYERS + steps * DRAFT_LAYERS
        if name == "grammar" and steps >= 10:
            expected += tokens
        if name == "noise" and steps >= 10:
            expected += 2 * steps + tokens
        assert reports >= expected


class Held(TableRunner):
    """A runner whose passes wait for a semaphore."""

    def __init__(self) -> None:
        super().__init__(context=CONTEXT)
        self.passes = threading.Semaphore(0)
        self.waiting = threading.Event()

    def forward(self, packed: Packed) -> Forward:
        self.waiting.set()
        assert self.passes.acquire(timeout=60.0)
        return super().forward(packed)


async def test_a_pass_that_does_not_return_reports_nothing() -> None:
    """And the stack shows where the engine is."""
    target = Held()
    world = replace(table("draft-model"), target=target)
    engine = AsyncEngine(world.engine([dictated.policy(Case(depths="0").policy)], EngineLimits(max_rows=2)))
    try:
        assert engine.heartbeat is None
        assert engine.stack() == ""
        answer = asyncio.create_task(engine.generate(Request("a", (5, 6), GREEDY)))
        assert await asyncio.to_thread(target.waiting.wait, 60.0)
        held = engine.heartbeat
        assert held is not None
        await asyncio.sleep(0.05)
        assert engine.heartbeat == held
        assert "passes.acquire" in engine.stack()
        target.passes.release(1000)
        assert (await answer).error is None
    finally:
        target.passes.release(1000)
        await asyncio.to_thread(engine.close)


def test_reports_reach_the_callback_of_their_own_thread() -> None:
    """Two engines in one process do not report for each other; without a callback a report does nothing."""
    counts = [0, 0]

    def engine(which: int, reports: int) -> None:
        report_progress()

        def count() -> None:
            counts[which] += 1

        set_progress_callback(count)
        for _ in range(reports):
            report_progress()

    threads = [threading.Thread(target=engine, args=case) for case in ((0, 3), (1, 5))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [3, 5]
