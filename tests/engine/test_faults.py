"""Faults in one request's work, or in a drafter's, harm no other request: each of them gets its usual text."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Drafter
from adaptspec.drafting.ngram import NgramDrafter
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.model_executor import zero_broken_logits
from adaptspec.engine.watchdog import Watchdog
from adaptspec.errors import EngineError
from adaptspec.models.runner import Packed
from adaptspec.request import Request, SamplingParams
from adaptspec.types import Completion, FinishReason, Sink
from tests.engine.conftest import Dictated, Notes, make_core
from tests.fakes import TableRunner

GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
ROWS = 6


class Faulty(TableRunner):
    """A runner whose passes go through `fault(packed, logits, rows' tokens)` first."""

    def __init__(self, fault: Callable[[TableRunner, Packed, torch.Tensor], torch.Tensor], **more: Any) -> None:
        super().__init__(context=512, **more)
        self._fault = fault

    def forward(self, packed: Packed) -> torch.Tensor:
        return self._fault(self, packed, super().forward(packed))


def well(runner: TableRunner, packed: Packed, logits: torch.Tensor) -> torch.Tensor:
    return logits


def core_of(
    tokenizer: PreTrainedTokenizerFast,
    target: TableRunner,
    drafter: Drafter | None = None,
    *,
    prefill_tokens: int = 8,
    sinks: Sequence[Sink] = (),
) -> EngineCore:
    drafter = drafter or DraftModelDrafter(TableRunner(seed=1, blend=0.8, context=512))
    policy = Dictated((drafter.name,), lambda n, size: [3] * size)
    limits = EngineLimits(max_rows=ROWS, prefill_tokens=prefill_tokens)
    return make_core(tokenizer, target, [drafter], {"p": (policy, "coupled")}, sinks=sinks, limits=limits)


def run(core: EngineCore, requests: list[Request]) -> dict[str, Completion]:
    """As the front does: a step that raises is recovered from."""
    for request in requests:
        core.add(request)
    done: dict[str, Completion] = {}
    for _ in range(3000):
        if core.idle:
            return done
        try:
            deltas = core.step()
        except Exception as error:  # noqa: BLE001
            deltas = core.recover(error)
        done |= {delta.request_id: delta.completion for delta in deltas if delta.completion is not None}
    raise AssertionError("it never comes to an end")


def requests(count: int) -> list[Request]:
    return [Request(f"r{i}", (5, 6, 2 + i), GREEDY) for i in range(count)]


def held_by(runner: TableRunner, packed: Packed, first: int) -> np.ndarray[Any, Any]:
    """Which of the packed rows belong to the request whose prompt ends in `first`."""
    return np.array([runner.held(int(row))[2:3] == [first] for row in packed.rows])


def raises_at(length: int, *, kind: type[Exception] = RuntimeError, only: bool = False) -> Callable[..., torch.Tensor]:
    """A fault of the request r2, once it has so many tokens; `only` if it decodes, and not where it reads them."""

    def fault(runner: TableRunner, packed: Packed, logits: torch.Tensor) -> torch.Tensor:
        mine = held_by(runner, packed, 4)
        for row, count in zip(packed.rows[mine].tolist(), packed.counts[mine].tolist(), strict=True):
            reads = only and runner.length(row) == count
            if runner.length(row) >= length and not reads:
                raise kind("a fault of its own")
        return logits

    return fault


@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 14), count=st.integers(1, 9), only=st.booleans(), memory=st.booleans())
def test_a_request_that_makes_rounds_fail_ends_alone(
    tokenizer: PreTrainedTokenizerFast, length: int, count: int, only: bool, memory: bool
) -> None:
    """Wherever it breaks (prompt, first token, decoding) and whoever runs beside it."""
    kind = MemoryError if memory else RuntimeError
    plain = run(core_of(tokenizer, TableRunner(context=512)), requests(count))
    done = run(core_of(tokenizer, Faulty(raises_at(length, kind=kind, only=only))), requests(count))
    assert {name: c.tokens for name, c in done.items() if name != "r2"} == {
        name: c.tokens for name, c in plain.items() if name != "r2"
    }
    if count > 2:
        assert done["r2"].finish is FinishReason.ERROR
        assert done["r2"].error == f"{kind.__name__}: a fault of its own"
        assert done["r2"].tokens == plain["r2"].tokens[: len(done["r2"].tokens)]


def test_a_request_that_fails_in_decoding_alone_is_found(tokenizer: PreTrainedTokenizerFast) -> None:
    """Reading its text again goes well each time. It is not cleared before it has decoded: else no request is found to
    fail by itself, and fewer run at once.
    """
    notes = Notes()
    core = core_of(tokenizer, Faulty(raises_at(5, only=True)), prefill_tokens=64, sinks=[notes])
    done = run(core, requests(4))
    assert [name for name, one in done.items() if one.finish is FinishReason.ERROR] == ["r2"]
    assert max(len(record.rows) for record in notes.records) == 3


def test_a_client_that_leaves_under_suspicion_takes_nobody_along(tokenizer: PreTrainedTokenizerFast) -> None:
    """Nobody is left in its half then: a round without rows fails, and would be blamed on whoever waits next."""
    passes = 0

    def once(runner: TableRunner, packed: Packed, logits: torch.Tensor) -> torch.Tensor:
        nonlocal passes
        passes += 1
        if passes == 3 or not len(packed.rows):
            raise RuntimeError("a fault")
        return logits

    plain = run(core_of(tokenizer, TableRunner(context=512)), requests(5))
    core = core_of(tokenizer, Faulty(once))
    for request in requests(4):
        core.add(request)
    core.step()
    core.step()
    with pytest.raises(RuntimeError) as broken:
        core.step()
    core.recover(broken.value)
    ended = [*core.abort("r0"), *core.abort("r1")]
    assert [delta.request_id for delta in ended] == ["r0", "r1"]
    done = run(core, requests(5)[4:])
    assert {name: c.tokens for name, c in done.items()} == {f"r{i}": plain[f"r{i}"].tokens for i in (2, 3, 4)}


def test_memory_short_for_many_rows_at_once_is_nobodys_fault(tokenizer: PreTrainedTokenizerFast) -> None:
    """It is enough for three: all are served, fewer at a time, and no request fails for its neighbours."""

    def greedy(runner: TableRunner, packed: Packed, logits: torch.Tensor) -> torch.Tensor:
        if len(packed.rows) > 3:
            raise MemoryError("too many rows")
        return logits

    target = Faulty(greedy)
    plain = run(core_of(tokenizer, TableRunner(context=512)), requests(8))
    done = run(core_of(tokenizer, target), requests(8))
    assert {name: c.tokens for name, c in done.items()} == {name: c.tokens for name, c in plain.items()}
    assert target.fed < 8 * 15 * 6, "it was tried again and again"


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("length", [3, 7])
def test_scores_that_are_no_numbers_end_their_row(
    tokenizer: PreTrainedTokenizerFast, value: float, length: int
) -> None:
    def poison(runner: TableRunner, packed: Packed, logits: torch.Tensor) -> torch.Tensor:
        owner = np.repeat(held_by(runner, packed, 4), packed.wanted)
        if any(runner.length(int(row)) >= length for row in packed.rows[held_by(runner, packed, 4)]):
            logits = logits.clone()
            logits[torch.from_numpy(owner), 3] = value
        return logits

    plain = run(core_of(tokenizer, TableRunner(context=512)), requests(8))
    done = run(core_of(tokenizer, Faulty(poison)), requests(8))
    assert "not numbers" in (done["r2"].error or "")
    assert done["r2"].tokens == plain["r2"].tokens[: len(done["r2"].tokens)]
    assert {n: c.tokens for n, c in done.items() if n != "r2"} == {n: c.tokens for n, c in plain.items() if n != "r2"}


def test_tokens_a_model_rules_out_are_sound() -> None:
    """-inf for some is a model's right, also where it makes the sum infinite; -inf for all is not."""
    logits = torch.zeros(4, 5)
    logits[:, 2] = -torch.inf
    assert not len(zero_broken_logits(logits, np.array([1, 1]))[1])
    logits[1] = -torch.inf
    checked, broken = zero_broken_logits(logits, np.array([1, 1]))
    assert broken.tolist() == [0]
    assert torch.isfinite(checked[:2]).all()


def draft_raises(runner: TableRunner, packed: Packed, logits: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("the draft is broken")


def draft_nan(runner: TableRunner, packed: Packed, logits: torch.Tensor) -> torch.Tensor:
    return logits * np.nan


class LostLookup(NgramDrafter):
    """An n-gram drafter that raises wherever it can."""

    def propose(self, job: Any) -> Any:
        raise KeyError("lost")

    def offer(self, row: int, tokens: list[int], most: int) -> list[float]:
        raise KeyError("lost")

    def shadow(self, row: int, tokens: list[int], start: int) -> Any:
        raise KeyError("lost")

    def free(self, row: int) -> None:
        raise KeyError("lost")

    def commit(self, row: int, valid: int, tokens: list[int]) -> None:
        raise KeyError("lost")


@pytest.mark.parametrize(
    "make",
    [lambda: DraftModelDrafter(Faulty(draft_raises)), lambda: DraftModelDrafter(Faulty(draft_nan)), LostLookup],
    ids=["raises", "nan", "lookup"],
)
def test_a_broken_drafter_costs_drafts_and_no_answer(
    tokenizer: PreTrainedTokenizerFast, caplog: pytest.LogCaptureFixture, make: Callable[[], Drafter]
) -> None:
    plain = run(core_of(tokenizer, TableRunner(context=512)), requests(8))
    done = run(core_of(tokenizer, TableRunner(context=512), make()), requests(8))
    assert {name: c.tokens for name, c in done.items()} == {name: c.tokens for name, c in plain.items()}
    assert all(completion.stats.drafted == 0 for completion in done.values())
    assert "no drafts for 0.1 s" in caplog.text


def test_a_policy_that_fails_costs_drafts_and_no_answer(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run(core_of(tokenizer, TableRunner(context=512)), requests(8))
    core = core_of(tokenizer, TableRunner(context=512))

    def broken(signals: object) -> None:
        raise IndexError("out of ideas")

    monkeypatch.setattr(core.controller, "decide", broken)
    done = run(core, requests(8))
    assert {name: c.tokens for name, c in done.items()} == {name: c.tokens for name, c in plain.items()}


@pytest.mark.parametrize("where", ["push", "take"])
def test_text_that_cannot_be_made_ends_its_request(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A detokenizer that breaks takes its own request along and no other."""
    plain = run(core_of(tokenizer, TableRunner(context=512)), requests(8))
    core = core_of(tokenizer, TableRunner(context=512))
    for request in requests(8):
        core.add(request)

    def broken(*_: Any, **__: Any) -> None:
        raise UnicodeError("no text")

    monkeypatch.setattr(core.scheduler.waiting[2]._detokenizer, where, broken)
    done = run(core, [])
    assert done["r2"].finish is FinishReason.ERROR
    assert {n: c.tokens for n, c in done.items() if n != "r2"} == {n: c.tokens for n, c in plain.items() if n != "r2"}


@asynccontextmanager
async def front_of(core: EngineCore, hang: float) -> AsyncIterator[AsyncEngine]:
    front = AsyncEngine(core, max_waiting=8)
    dog = asyncio.create_task(Watchdog(front, hang).run(every=0.02))
    try:
        yield front
    finally:
        dog.cancel()
        await asyncio.to_thread(front.close)


async def test_an_engine_that_hangs_is_given_up_and_taken_back(tokenizer: PreTrainedTokenizerFast) -> None:
    """Streams and calls end with an error while it hangs; afterwards it serves as before, with nothing left over."""
    gate = threading.Event()

    def hang(runner: TableRunner, packed: Packed, logits: torch.Tensor) -> torch.Tensor:
        if runner.fed > 20:
            gate.wait(20.0)
        return logits

    async with front_of(core_of(tokenizer, Faulty(hang)), 0.1) as front:
        waiting = [asyncio.create_task(front.generate(request)) for request in requests(8)]
        outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10.0)
        assert all(isinstance(outcome, EngineError) for outcome in outcomes)
        assert not front.alive
        with pytest.raises(EngineError, match="has made no progress"):
            await front.generate(Request("late", (5, 6), GREEDY))
        with pytest.raises(EngineError, match="has made no progress"):
            front.call(lambda: 1).result(5)
        gate.set()

        async def back() -> None:
            while not front.alive or front.stats().waiting or front.stats().running:
                await asyncio.sleep(0.01)

        await asyncio.wait_for(back(), 10.0)
        assert (await front.generate(Request("again", (5, 6), GREEDY))).finish is FinishReason.LENGTH


async def test_who_waits_for_work_that_hangs_is_told(tokenizer: PreTrainedTokenizerFast) -> None:
    """Also the one whose own work it is: saving state at shutdown must not wait for ever."""
    gate = threading.Event()
    async with front_of(core_of(tokenizer, TableRunner(context=512)), 0.1) as front:
        calls = [front.call(lambda: gate.wait(20.0)), front.call(lambda: 2)]
        for call in calls:
            with pytest.raises(EngineError, match="has made no progress"):
                await asyncio.wait_for(asyncio.wrap_future(call), 10.0)
        gate.set()
        while not front.alive:
            await asyncio.sleep(0.01)
        assert await asyncio.wrap_future(front.call(lambda: 3)) == 3
