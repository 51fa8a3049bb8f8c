"""Faults in one request's work, or in a drafter's, harm no other request: each of them gets its usual answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from adaptspec.control.algorithms.algorithm import Choice
from adaptspec.control.policy import BatchSignals
from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import Drafter
from adaptspec.drafting.lookup import LookupDrafter
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.model_executor import ModelExecutor
from adaptspec.engine.scheduler import SAFE_BATCH_SECONDS
from adaptspec.engine.watchdog import Watchdog
from adaptspec.errors import EngineError
from adaptspec.models.runner import Forward, Packed
from adaptspec.request import Request, SamplingParams
from adaptspec.results import Completion, FinishReason
from adaptspec.rounds import RoundRecord, Sink
from tests.engine.conftest import Dictated, make_core
from tests.exactness import dictated
from tests.exactness.harness import (
    OFF,
    Case,
    Notes,
    Overlapping,
    Script,
    answers,
    assert_same,
    assert_streamed,
    drive,
    plain,
)
from tests.exactness.worlds import CONTEXT, TOKENIZER, World, table
from tests.fakes import TableRunner

GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
ROWS = 6
USUAL = table("draft-model")
Fault = Callable[["Faulty", Packed, torch.Tensor], torch.Tensor]


class Faulty(TableRunner):
    """A runner whose passes go through `fault(runner, packed, logits)`."""

    def __init__(self, fault: Fault, **more: Any) -> None:
        super().__init__(context=CONTEXT, **more)
        self._fault = fault

    def forward(self, packed: Packed) -> Forward:
        return Forward(self._fault(self, packed, super().forward(packed).logits))


def core_of(
    target: TableRunner,
    drafter: Drafter | None = None,
    *,
    prefill_tokens: int = 8,
    sinks: Sequence[Sink] = (),
    tokenizer: PreTrainedTokenizerFast = TOKENIZER,
) -> EngineCore:
    """An engine that drafts three tokens for each row."""
    drafter = drafter or DraftModelDrafter(TableRunner(seed=1, blend=0.8, context=CONTEXT))
    case = Case(drafter=drafter.name, depths="3")
    limits = EngineLimits(ROWS, prefill_tokens=prefill_tokens)
    return World(target, [drafter], tokenizer).engine([dictated.policy(case.policy)], limits, sinks)


def requests(count: int) -> list[Request]:
    return [Request(f"r{i}", (5, 6, 2 + i), GREEDY) for i in range(count)]


def assert_usual(done: dict[str, Completion], asked: Sequence[Request], *, failed: Sequence[str] = ()) -> None:
    """All but the failed ones have the answers of plain decoding, and those a beginning of it."""
    for request in asked:
        its = plain(USUAL, request)
        if request.id in failed:
            assert done[request.id].finish is FinishReason.ERROR
            assert done[request.id].tokens == its.tokens[: len(done[request.id].tokens)]
        else:
            assert (done[request.id].tokens, done[request.id].error) == (its.tokens, None)


def held_by(runner: TableRunner, packed: Packed, first: int) -> np.ndarray[Any, Any]:
    """Which of the packed rows belong to the request whose prompt ends in `first`."""
    return np.array([runner.held(int(row))[2:3] == [first] for row in packed.rows])


def raises_at(length: int, *, only: bool = False) -> Fault:
    """A fault of the request r2, once it has so many tokens; `only` if it decodes, and not where it reads them."""

    def fault(runner: Faulty, packed: Packed, logits: torch.Tensor) -> torch.Tensor:
        mine = held_by(runner, packed, 4)
        for row, count in zip(packed.rows[mine].tolist(), packed.counts[mine].tolist(), strict=True):
            reads = only and runner.length(row) == count
            if runner.length(row) >= length and not reads:
                raise MemoryError("a fault of its own")
        return logits

    return fault


@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 14), count=st.integers(1, 9), only=st.booleans())
def test_a_request_that_makes_rounds_fail_ends_alone(length: int, count: int, only: bool) -> None:
    """Wherever it breaks (prompt, first token, decoding) and whatever runs beside it."""
    asked = requests(count)
    done = answers(core_of(Faulty(raises_at(length, only=only))), asked)
    assert_usual(done, asked, failed=["r2"] if count > 2 else ())
    assert count < 3 or done["r2"].error == "MemoryError: a fault of its own"


def test_a_request_that_fails_in_decoding_alone_is_found() -> None:
    """Reading its text again goes well each time. It is not cleared before it has decoded: else no request is found to
    fail by itself, and fewer run at once.
    """
    notes, asked = Notes(), requests(4)
    done = answers(core_of(Faulty(raises_at(5, only=True)), prefill_tokens=64, sinks=[notes]), asked)
    assert_usual(done, asked, failed=["r2"])
    assert max(len(record.rows) for record in notes.records) == 3


def test_a_client_that_leaves_while_a_fault_is_sought_takes_no_other_along() -> None:
    """A round without rows would fail, and be blamed on the request that waits next."""
    passes = 0

    def once(runner: Faulty, packed: Packed, logits: torch.Tensor) -> torch.Tensor:
        nonlocal passes
        passes += 1
        if passes == 3 or not len(packed.rows):
            raise MemoryError("a fault")
        return logits

    core, asked = core_of(Faulty(once)), requests(5)
    for request in asked[:4]:
        core.add(request)
    core.step()
    core.step()
    with pytest.raises(MemoryError) as broken:
        core.step()
    core.recover(broken.value)
    ended = [*core.abort("r0"), *core.abort("r1")]
    assert [delta.request_id for delta in ended] == ["r0", "r1"]
    assert_usual(answers(core, asked[4:]), asked[2:])


class Stubborn(TableRunner):
    """A runner that fails once to free a row in use."""

    failed = False

    def free(self, row: int) -> None:
        if self.held(row) and not self.failed:
            self.failed = True
            raise MemoryError("the row cannot be freed")
        super().free(row)


def test_a_row_that_cannot_be_freed_costs_no_answer() -> None:
    """A request has ended and others have new tokens: clients and sinks get all of it."""
    target = Stubborn(context=CONTEXT)
    short = replace(requests(1)[0], sampling=replace(GREEDY, max_tokens=5))
    asked = [*requests(4)[1:], short]
    limits = EngineLimits(ROWS, prefill_tokens=64, prefix_cache="off")  # rows are freed when requests end
    notes = Notes()
    deltas = drive(World(target, [LookupDrafter(24)], TOKENIZER).engine([OFF], limits, [notes]), asked, Script())
    assert target.failed
    assert notes.completions.keys() == {request.id for request in asked}
    for request in asked:
        pieces = [delta for delta in deltas if delta.request_id == request.id]
        (done,) = [delta.completion for delta in pieces if delta.completion is not None]
        assert_same(done, plain(USUAL, request))
        assert_streamed(done, pieces)


def test_a_client_may_leave_though_its_row_cannot_be_freed() -> None:
    target, asked = Stubborn(context=CONTEXT), requests(4)
    limits = EngineLimits(ROWS, prefill_tokens=64, prefix_cache="off")
    core = World(target, [LookupDrafter(24)], TOKENIZER).engine([OFF], limits)
    for request in asked[:2]:
        core.add(request)
    core.step()
    (left,) = core.abort("r0")
    assert target.failed
    assert left.completion is not None
    assert_usual(answers(core, asked[2:]), asked[2:])
    assert core.idle


def test_a_request_that_cannot_start_again_holds_up_no_other() -> None:
    """Its round has failed, and it is tried alone: then the others must have their turn."""
    failed = False

    def once(runner: Faulty, packed: Packed, logits: torch.Tensor) -> torch.Tensor:
        nonlocal failed
        if not failed and len(packed.rows) == 2:
            failed = True
            raise MemoryError("a fault")
        return logits

    core, asked = core_of(Faulty(once), prefill_tokens=64), requests(2)
    start = core.controller.start

    def refuse(row: int, request: Request) -> None:
        if failed and request.id == "r0":
            raise MemoryError("no state for it")
        start(row, request)

    core.controller.start = refuse  # type: ignore[method-assign]
    assert_usual(answers(core, asked), asked, failed=["r0"])
    assert failed


class Full(TableRunner):
    """A runner that breaks where room for a long text is asked for."""

    def reserve(self, row: int, length: int) -> bool:
        if length > 40:
            raise MemoryError("no room at all")
        return super().reserve(row, length)


def test_a_request_that_cannot_be_admitted_ends_alone() -> None:
    """It has no row when its round fails."""
    asked = [Request("long", (5,) * 50, GREEDY), *requests(3)]
    done = answers(core_of(Full(context=CONTEXT)), asked)
    assert_usual(done, asked, failed=["long"])
    assert done["long"].error == "MemoryError: no room at all"


def test_memory_short_for_many_rows_at_once_is_the_fault_of_no_request() -> None:
    """It is enough for three: all are served, fewer at a time, and no request fails for its neighbours."""

    def greedy(runner: Faulty, packed: Packed, logits: torch.Tensor) -> torch.Tensor:
        if len(packed.rows) > 3:
            raise MemoryError("too many rows")
        return logits

    target, asked = Faulty(greedy), requests(8)
    assert_usual(answers(core_of(target), asked), asked)
    assert target.fed < 8 * 15 * 6, "it was tried again and again"


def test_a_batch_that_was_too_large_is_not_tried_again_for_a_minute() -> None:
    """Three requests run at once and four do not: after the first failure the batch stays small, until it may grow."""
    failures, now = 0, 1000.0

    def greedy(runner: Faulty, packed: Packed, logits: torch.Tensor) -> torch.Tensor:
        nonlocal failures
        if len(packed.rows) > 3:
            failures += 1
            raise MemoryError("too many rows")
        return logits

    drafter = LookupDrafter(24)
    policy = Dictated((drafter.name,), lambda _, size: [0] * size)
    limits = EngineLimits(ROWS, prefill_tokens=64)
    core = make_core(TOKENIZER, Faulty(greedy), [drafter], {"p": (policy, "coupled")}, limits=limits, clock=lambda: now)
    for seconds, expected in ((0.0, 1), (SAFE_BATCH_SECONDS - 1.0, 1), (2.0, 2)):
        now += seconds
        assert_usual(answers(core, requests(8)), requests(8))
        assert failures == expected


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("length", [3, 7])
def test_scores_that_are_no_numbers_end_their_row(value: float, length: int) -> None:
    """Tokens that a model rules out by -inf are sound."""

    def poison(runner: Faulty, packed: Packed, logits: torch.Tensor) -> torch.Tensor:
        own, logits = held_by(runner, packed, 4), logits.clone()
        logits[:, 1] = -torch.inf  # is never chosen here
        if any(runner.length(int(row)) >= length for row in packed.rows[own]):
            logits[torch.from_numpy(np.repeat(own, packed.wanted)), 3] = value
        return logits

    asked = [replace(one, sampling=replace(one.sampling, logit_bias={1: -100.0})) for one in requests(8)]
    done = answers(core_of(Faulty(poison)), asked)
    assert_usual(done, asked, failed=["r2"])
    assert "not numbers" in (done["r2"].error or "")


class Poisoned(TableRunner):
    """A runner whose first row to be read caches what makes all later scores NaN, in every copy of it, too."""

    def __init__(self) -> None:
        super().__init__(context=CONTEXT)
        self._poisoned: set[int] | None = None  # None: nothing is read yet

    def forward(self, packed: Packed) -> Forward:
        if self._poisoned is None:
            self._poisoned = {int(packed.rows[0])}
        logits = super().forward(packed).logits.clone()
        own = np.repeat(np.isin(packed.rows, list(self._poisoned)), packed.wanted)
        logits[torch.from_numpy(own)] = np.nan
        return Forward(logits)

    def copy_prefix(self, source: int, target: int, length: int) -> int:
        if source in (self._poisoned or ()):
            self._poisoned = {*(self._poisoned or ()), target}
        return super().copy_prefix(source, target, length)

    def free(self, row: int) -> None:
        super().free(row)
        (self._poisoned or set()).discard(row)


@pytest.mark.parametrize("make", [ModelExecutor, Overlapping])
def test_the_cache_of_a_failed_request_is_not_reused(make: type[ModelExecutor]) -> None:
    """Others wait for its prefix; where rounds overlap, they are admitted before it has left."""
    prompt = tuple(2 + (7 * place + place // 5) % 20 for place in range(40))
    asked = [Request(f"r{i}", prompt, GREEDY, key="a") for i in range(3)]
    target, drafter = Poisoned(), DraftModelDrafter(TableRunner(seed=1, blend=0.8, context=CONTEXT))
    policy, limits = dictated.policy(Case(depths="3").policy), EngineLimits(ROWS, prefill_tokens=8)
    core = World(target, [drafter], TOKENIZER).engine([policy], limits, executor=make(target, [drafter]))
    done = answers(core, asked)
    assert_usual(done, asked, failed=["r0"])


def test_a_request_that_cannot_start_ends_alone_and_costs_no_other_pass() -> None:
    asked, target = requests(4), TableRunner(context=CONTEXT)
    core = core_of(target)
    start = core.controller.start

    def refuse(row: int, request: Request) -> None:
        if request.id == "r2":
            raise MemoryError("no state for it")
        start(row, request)

    core.controller.start = refuse  # type: ignore[method-assign]
    assert_usual(answers(core, asked), asked, failed=["r2"])
    usual = TableRunner(context=CONTEXT)
    answers(core_of(usual), [one for one in asked if one.id != "r2"])
    assert target.fed == usual.fed


def test_nothing_is_learned_from_the_round_in_which_a_row_fails() -> None:
    """Its draft was not rejected: what the target would have accepted is unknown."""

    def poison(runner: Faulty, packed: Packed, logits: torch.Tensor) -> torch.Tensor:
        own, logits = held_by(runner, packed, 4), logits.clone()
        if any(runner.length(int(row)) >= 9 for row in packed.rows[own]):
            logits[torch.from_numpy(np.repeat(own, packed.wanted))] = np.nan
        return logits

    notes, asked = Notes(), requests(4)
    same = DraftModelDrafter(TableRunner(context=CONTEXT))  # drafts what the target chooses
    assert_usual(answers(core_of(Faulty(poison), same, sinks=[notes]), asked), asked, failed=["r2"])
    for record in notes.records:
        rejected = record.drafted > record.accepted
        assert "r2" not in np.array(record.request_ids)[rejected]


def draft_raises(runner: Faulty, packed: Packed, logits: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("the draft is broken")


class LostLookup(LookupDrafter):
    """An n-gram drafter that raises wherever it can."""

    def propose(self, *_: Any) -> Any:
        raise KeyError("lost")

    start = look_up = score = observe = commit = leave = propose  # type: ignore[assignment]


@pytest.mark.parametrize(
    "make",
    [
        lambda: DraftModelDrafter(Faulty(draft_raises)),
        lambda: DraftModelDrafter(Faulty(lambda runner, packed, logits: logits * np.nan)),
        lambda: LostLookup(24),
    ],
    ids=["raises", "nan", "lookup"],
)
def test_a_broken_drafter_costs_drafts_and_no_answer(
    caplog: pytest.LogCaptureFixture, make: Callable[[], Drafter]
) -> None:
    asked = requests(8)
    done = answers(core_of(TableRunner(context=CONTEXT), make()), asked)
    assert_usual(done, asked)
    assert all(completion.stats.drafted == 0 for completion in done.values())
    assert "no drafts for 0.1 s" in caplog.text


class Failing(dictated.Dictated):
    def choose(self, signals: BatchSignals) -> Choice:
        raise IndexError("out of ideas")


class Forgetful(dictated.Dictated):
    def learn(self, record: RoundRecord, memo: object = None) -> None:
        raise IndexError("nothing to be learned")


def test_a_policy_that_cannot_learn_costs_no_answer() -> None:
    spec, asked = dictated.policy(Case(depths="3").policy, kind=Forgetful), requests(8)
    done = answers(table("draft-model").engine([spec], EngineLimits(ROWS)), asked)
    assert_usual(done, asked)
    assert all(one.stats.drafted for one in done.values())


def test_a_policy_that_fails_costs_drafts_and_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    spec = dictated.policy(Case(depths="3").policy, kind=Failing)
    asked = requests(8)
    assert_usual(answers(table("draft-model").engine([spec], EngineLimits(ROWS)), asked), asked)
    assert sum("decision for a round has failed" in one.message for one in caplog.records) == 1


class Unreadable:
    """A tokenizer that cannot write one token."""

    def __init__(self, token: int) -> None:
        self._token, self.backend_tokenizer = token, self

    def __getattr__(self, name: str) -> Any:
        return getattr(TOKENIZER, name)

    def decode(self, tokens: Sequence[int], **more: Any) -> str:
        if self._token in tokens:
            raise UnicodeError("no text")
        text: str = TOKENIZER.backend_tokenizer.decode(tokens, **more)
        return text


def test_text_that_cannot_be_made_ends_its_request() -> None:
    asked, token = requests(8), 3
    failed = [one.id for one in asked if token in plain(USUAL, one).tokens]
    assert 0 < len(failed) < len(asked)
    target = TableRunner(context=CONTEXT)
    done = answers(core_of(target, tokenizer=Unreadable(token)), asked)  # type: ignore[arg-type]
    assert_usual(done, asked, failed=failed)


@asynccontextmanager
async def front_of(core: EngineCore, hang: float) -> AsyncIterator[AsyncEngine]:
    front = AsyncEngine(core, max_waiting=8)
    dog = asyncio.create_task(Watchdog(front, hang).run(every=0.02))
    try:
        yield front
    finally:
        dog.cancel()
        await asyncio.to_thread(front.close)


async def test_an_engine_that_hangs_is_given_up_and_taken_back() -> None:
    """Streams and calls end with an error while it hangs; afterwards it serves as before, with nothing left over."""
    gate = threading.Event()

    def hang(runner: Faulty, packed: Packed, logits: torch.Tensor) -> torch.Tensor:
        if runner.fed > 20:
            gate.wait(20.0)
        return logits

    async with front_of(core_of(Faulty(hang)), 0.1) as front:
        waiting = [asyncio.create_task(front.generate(request)) for request in requests(8)]
        outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10.0)
        assert all(isinstance(outcome, EngineError) for outcome in outcomes)
        assert not front.is_alive
        with pytest.raises(EngineError, match="has made no progress"):
            await front.generate(Request("late", (5, 6), GREEDY))
        with pytest.raises(EngineError, match="has made no progress"):
            front.call(lambda: 1).result(5)
        gate.set()

        async def back() -> None:
            while not front.is_alive or front.stats().waiting or front.stats().running:
                await asyncio.sleep(0.01)

        await asyncio.wait_for(back(), 10.0)
        assert (await front.generate(Request("again", (5, 6), GREEDY))).finish is FinishReason.LENGTH


async def test_a_call_that_hangs_ends_with_an_error() -> None:
    """So do those behind it: saving state at shutdown must not wait for ever."""
    gate = threading.Event()
    async with front_of(core_of(TableRunner(context=CONTEXT)), 0.1) as front:
        calls = [front.call(lambda: gate.wait(20.0)), front.call(lambda: 2)]
        for call in calls:
            with pytest.raises(EngineError, match="has made no progress"):
                await asyncio.wait_for(asyncio.wrap_future(call), 10.0)
        gate.set()
        while not front.is_alive:
            await asyncio.sleep(0.01)
        assert await asyncio.wrap_future(front.call(lambda: 3)) == 3
