"""The engine reports progress within a round, in proportion to its work: a long round differs from a hang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.core import EngineLimits
from adaptspec.models.runner import Packed
from adaptspec.models.sampling import PART
from adaptspec.progress import report_progress, set_progress_callback
from adaptspec.request import Grammar, Request, SamplingParams
from adaptspec.types import RoundRecord
from tests.conftest import MakeModel
from tests.engine.branching import Branched, Shape
from tests.engine.conftest import Notes, make_core
from tests.fakes import TableRunner
from tests.models.packing import load_runner

ROWS, DEEP = 4, 24
LAYERS, DRAFT_LAYERS = 4, 3
GREEDY = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
CHAIN, TREE = Shape(width=1), Shape(width=3, nodes=64)


class Deep(Branched):
    """A policy whose drafts are as deep as there is room for."""

    max_depth = DEEP


@dataclass
class Counted(Notes):
    """A sink that counts the reports of progress within each round: from its record to that of the round before."""

    rounds: list[tuple[RoundRecord, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.engine: AsyncEngine | None = None
        self._last = 0

    def emit(self, record: RoundRecord) -> None:
        assert self.engine is not None
        heartbeat = self.engine.heartbeat
        assert heartbeat is not None
        self.rounds.append((record, heartbeat - self._last))
        self._last = heartbeat


@asynccontextmanager
async def counted(
    tokenizer: PreTrainedTokenizerFast, make_model: MakeModel, shape: Shape
) -> AsyncIterator[tuple[AsyncEngine, Counted]]:
    """An engine over tiny real models, whose drafts have this shape."""
    counter = Counted()
    target = load_runner(make_model("llama", num_hidden_layers=LAYERS), max_rows=ROWS)
    draft = load_runner(make_model("llama", seed=1, num_hidden_layers=DRAFT_LAYERS), max_rows=ROWS)
    core = make_core(
        tokenizer,
        target,  # type: ignore[arg-type]
        [DraftModelDrafter(draft)],
        {"p": (Deep(("draft-model",), lambda n, size: [DEEP] * size, shape), "coupled")},
        sinks=[counter],
        limits=EngineLimits(max_rows=ROWS, prefill_tokens=64),
    )
    counter.engine = AsyncEngine(core)
    try:
        yield counter.engine, counter
    finally:
        await asyncio.to_thread(counter.engine.close)


async def served(engine: AsyncEngine, params: Sequence[SamplingParams], prompt: Sequence[int] = (10, 11, 12)) -> None:
    requests = [Request(f"r{i}", tuple(prompt), one) for i, one in enumerate(params)]
    done = await asyncio.gather(*(engine.generate(request) for request in requests))
    assert all(completion.error is None for completion in done)


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
async def test_every_layer_of_every_pass_is_reported(
    tokenizer: PreTrainedTokenizerFast, make_model: MakeModel, shape: Shape
) -> None:
    """Of each draft step and of the verify pass, within the round."""
    async with counted(tokenizer, make_model, shape) as (engine, counter):
        await served(engine, [GREEDY] * ROWS)
    assert max(record.draft_steps for record, _ in counter.rounds) >= 10
    for record, reports in counter.rounds:
        assert reports >= record.draft_steps * DRAFT_LAYERS + LAYERS


async def test_prompts_are_reported_layer_by_layer(tokenizer: PreTrainedTokenizerFast, make_model: MakeModel) -> None:
    async with counted(tokenizer, make_model, CHAIN) as (engine, counter):
        await served(engine, [GREEDY] * 2, range(10, 160))
    reading = [reports for record, reports in counter.rounds if record.prefill_tokens and not record.draft_steps]
    assert len(reading) >= 3
    assert all(reports > LAYERS for reports in reading)


async def test_every_mask_of_a_grammar_is_reported(tokenizer: PreTrainedTokenizerFast, make_model: MakeModel) -> None:
    """The target's masks are one per verified token; the draft's were computed for the same places."""
    grammar = Grammar("start: /[a-z]{200}/", "lark")
    params = SamplingParams(max_tokens=60, temperature=0.0, grammar=grammar)
    async with counted(tokenizer, make_model, CHAIN) as (engine, counter):
        await served(engine, [params] * ROWS)
    deep = [(record, reports) for record, reports in counter.rounds if record.draft_steps >= 10]
    assert deep
    for record, reports in deep:
        assert reports >= record.draft_steps * DRAFT_LAYERS + LAYERS + record.verify_tokens


async def test_scores_of_many_tokens_are_reported_in_parts(
    tokenizer: PreTrainedTokenizerFast, make_model: MakeModel
) -> None:
    """Noise and truncation for a thousand tokens of a large vocabulary take longer than a forward pass."""
    params = [SamplingParams(max_tokens=60, top_p=0.9, seed=i, ignore_eos=True) for i in range(ROWS)]
    async with counted(tokenizer, make_model, CHAIN) as (engine, counter):
        await served(engine, params)
    wide = [(record, reports) for record, reports in counter.rounds if record.verify_tokens > PART]
    assert wide
    for record, reports in wide:
        parts = -(-record.verify_tokens // PART)
        assert reports >= record.draft_steps * (DRAFT_LAYERS + 2) + LAYERS + 2 * parts


class Held(TableRunner):
    """A runner whose passes wait for a semaphore."""

    def __init__(self) -> None:
        super().__init__(context=512)
        self.passes = threading.Semaphore(0)
        self.waiting = threading.Event()

    def forward(self, packed: Packed) -> torch.Tensor:
        self.waiting.set()
        assert self.passes.acquire(timeout=60.0)
        return super().forward(packed)


async def test_a_pass_that_does_not_return_reports_nothing(tokenizer: PreTrainedTokenizerFast) -> None:
    """And the stack says where the engine is."""
    target = Held()
    policies = {"p": (Deep((), lambda n, size: [0] * size, CHAIN), "coupled")}
    engine = AsyncEngine(make_core(tokenizer, target, [], policies))
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
