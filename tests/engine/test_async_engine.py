"""The async front: streams, aborts, drains, failures; nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from adaptspec.config import EngineConfig
from adaptspec.control.task_detector import Detection
from adaptspec.engine.async_engine import AsyncEngine
from adaptspec.engine.build import build
from adaptspec.engine.core import EngineCore, EngineLimits
from adaptspec.engine.inputs import InputProcessor
from adaptspec.engine.scheduler import PromptProgress
from adaptspec.errors import DrainingError, EngineError, EngineStoppedError, OverloadedError, UnknownModelError
from adaptspec.models.runner import Packed
from adaptspec.request import Request, SamplingParams
from adaptspec.results import FinishReason
from adaptspec.rounds import RoundRecord, Sink
from tests.engine.desk import asking, desk_of
from tests.engine.policies import static
from tests.exactness import dictated
from tests.exactness.harness import Case, Notes, assert_same, plain
from tests.exactness.worlds import CONTEXT, TOKENIZER, table
from tests.fakes import TableRunner

GREEDY = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)


class Deadly(TableRunner):
    """A runner that ends the thread which it runs on."""

    def forward(self, packed: Packed):  # type: ignore[no-untyped-def]
        raise SystemExit("gone")


class Stuck(TableRunner):
    """A runner whose passes fail, and whose rows cannot be given back then."""

    failed = False

    def forward(self, packed: Packed):  # type: ignore[no-untyped-def]
        self.failed = True
        raise RuntimeError("met a fault")

    def free(self, row: int) -> None:
        if self.failed:
            raise MemoryError("gone")


class Metered(TableRunner):
    """A runner that makes no more passes than it is allowed: no answer ends by itself while a test looks on."""

    def __init__(self) -> None:
        super().__init__(context=CONTEXT)
        self.allowed = threading.Semaphore(0)

    def forward(self, packed: Packed):  # type: ignore[no-untyped-def]
        self.allowed.acquire()
        return super().forward(packed)


def core_of(
    target: TableRunner | None = None,
    depths: str = "any",
    limits: EngineLimits = EngineLimits(max_rows=4, prefill_tokens=8),
    sinks: Sequence[Sink] = (),
) -> EngineCore:
    world = table("draft-model")
    world = replace(world, target=target or world.target)
    return world.engine([dictated.policy(Case(depths=depths).policy)], limits, sinks)


@asynccontextmanager
async def metered() -> AsyncIterator[tuple[AsyncEngine, Metered]]:
    target = Metered()
    async with engine(target) as front:
        try:
            yield front, target
        finally:
            target.allowed.release(10_000)


async def nothing_is_left(front: AsyncEngine, target: Metered) -> None:
    """The round that runs may end, and a few more; those of a whole answer are never allowed."""
    target.allowed.release(5)
    ends = time.monotonic() + 10.0
    while front.heartbeat is not None or front.stats().running or front.stats().waiting:
        assert time.monotonic() < ends, front.stats()
        await asyncio.sleep(0.001)


@asynccontextmanager
async def engine(target: TableRunner | None = None, sinks: Sequence[Sink] = ()) -> AsyncIterator[AsyncEngine]:
    front = AsyncEngine(core_of(target, sinks=sinks), "served", max_waiting=4)
    try:
        yield front
    finally:
        await asyncio.to_thread(front.close)


async def test_many_streams_at_once_each_get_their_own_text() -> None:
    """Concurrency: pieces reach the stream they belong to, in order, and add up to the completion."""

    async def one(front: AsyncEngine, i: int) -> None:
        tokens: list[int] = []
        text = ""
        async for delta in front.stream(Request(f"r{i}", (5, 6, i + 4), GREEDY)):
            tokens += delta.tokens
            text += delta.text
            if delta.completion is not None:
                assert delta.completion.tokens == tuple(tokens)
                assert delta.completion.text == text
        assert len(tokens) == 20

    async with engine() as front:
        await asyncio.gather(*(one(front, i) for i in range(8)))
        assert front.stats().running == front.stats().waiting == 0
        assert front.target.name == "served"


async def test_a_request_that_is_not_streamed_has_one_delta() -> None:
    """It has the whole output, as the completion has."""
    async with engine() as front:
        pieces = [delta async for delta in front.stream(Request("r", (5, 6), GREEDY))]
        (whole,) = [delta async for delta in front.stream(Request("s", (5, 6), GREEDY, streamed=False))]
        assert len(pieces) > 1
        assert whole.completion is not None
        assert whole.tokens == whole.completion.tokens == tuple(token for delta in pieces for token in delta.tokens)
        assert whole.text == whole.completion.text == "".join(delta.text for delta in pieces)


LONG = SamplingParams(max_tokens=80, temperature=0.0, ignore_eos=True)  # ten rounds at the very least


async def test_leaving_a_stream_early_frees_its_row() -> None:
    """Abort on close: the engine stops working for a client that has gone."""
    async with metered() as (front, target):
        stream = front.stream(Request("r", (5, 6), LONG))
        target.allowed.release()
        await anext(stream)
        await stream.aclose()
        await nothing_is_left(front, target)


async def test_cancelling_generate_aborts() -> None:
    """Cancellation: a cancelled task leaves nothing running, wherever it stood."""
    for begun in (False, True):
        async with metered() as (front, target):
            task = asyncio.create_task(front.generate(Request("r", (5, 6), LONG)))
            await asyncio.sleep(0)
            if begun:
                target.allowed.release()
            while begun and not target.fed:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await nothing_is_left(front, target)


async def test_idle_work_runs_between_requests_and_ends_with_the_next() -> None:
    """Other work comes in pieces, on the engine's thread, never while there is a request; when there is no more of it
    the engine sleeps. While it lasts the engine shows that it lives, so that work that hangs is noticed."""
    begun, enough, ended = threading.Event(), threading.Event(), threading.Event()
    seen: set[tuple[str, bool, bool]] = set()

    def on_idle() -> bool:
        seen.add((threading.current_thread().name, core.idle, front.heartbeat is not None))
        begun.set()
        if enough.is_set():
            ended.set()
        return not ended.is_set()

    core = core_of()
    front = AsyncEngine(core, on_idle=on_idle)
    try:
        await front.generate(Request("a", (5, 6), GREEDY))
        assert await asyncio.to_thread(begun.wait, 10)
        await front.generate(Request("b", (5, 6), GREEDY))  # there is no end of work, and yet
        enough.set()
        assert await asyncio.to_thread(ended.wait, 10)
        while front.heartbeat is not None:
            await asyncio.sleep(0.001)
        assert seen == {("adaptspec-engine", True, True)}
    finally:
        await asyncio.to_thread(front.close)


async def test_the_engine_thread_computes_with_the_threads_that_were_asked_for(target_path: Path) -> None:
    """OpenMP keeps the number for each thread that starts products: the engine's own must have it."""
    before = torch.get_num_threads()
    try:
        built = build(
            EngineConfig(model=str(target_path), draft=None, policy=("off",), threads=before + 1, detect_tasks=False)
        )
        assert torch.get_num_threads() == before + 1, "on the thread that builds, which may compute as well"
        torch.set_num_threads(before)
        front = AsyncEngine(built.core, on_start=built.threads.apply)
        try:
            assert await asyncio.wrap_future(front.call(torch.get_num_threads)) == before + 1
        finally:
            await asyncio.to_thread(front.close)
    finally:
        torch.set_num_threads(before)


async def test_a_failed_round_whose_rows_cannot_be_freed_ends_its_request() -> None:
    """The thread goes on."""
    async with engine(Stuck(context=CONTEXT)) as front:
        done = await front.generate(Request("r", (5, 6), GREEDY))
        assert (done.finish, done.error) == (FinishReason.ERROR, "RuntimeError: met a fault")
        assert front.is_alive


async def test_streams_fail_if_the_engine_thread_dies() -> None:
    """Faults: if the loop itself breaks, open streams and later requests get an error, and `is_alive` says so."""
    async with engine(Deadly(context=CONTEXT)) as front:
        with pytest.raises(EngineError, match="gone"):
            await front.generate(Request("r", (5, 6), GREEDY))
        assert not front.is_alive
        with pytest.raises(EngineStoppedError, match="gone"):
            await front.generate(Request("later", (5, 6), GREEDY))


@pytest.mark.parametrize(("error", "lives"), [(torch.AcceleratorError, False), (torch.OutOfMemoryError, True)])
async def test_a_device_that_has_failed_ends_the_engine(error: type[RuntimeError], lives: bool) -> None:
    """Every later call on it fails. After a lack of memory, there may be some again."""

    class Fails(TableRunner):
        def forward(self, packed: Packed):  # type: ignore[no-untyped-def]
            raise error("an illegal memory access was encountered")

    async with engine(Fails(context=CONTEXT)) as front:
        if lives:
            assert (await front.generate(Request("r", (5, 6), GREEDY))).finish is FinishReason.ERROR
        else:
            with pytest.raises(EngineError, match="the device has failed; restart the server"):
                await front.generate(Request("r", (5, 6), GREEDY))
        assert front.is_alive == lives


async def test_the_queue_is_bounded() -> None:
    """Overload: beyond rows and queue, requests are refused at once instead of piling up."""
    async with engine() as front:
        params = SamplingParams(max_tokens=80, temperature=0.0, ignore_eos=True)
        streams = [front.stream(Request(f"r{i}", (5, 6), params)) for i in range(8)]
        pulls = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await front.generate(Request("one too many", (5,), GREEDY))
        for pull in pulls:
            pull.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)


async def test_requests_that_come_together_are_all_taken_or_none() -> None:
    """There is room for one more of eight requests, and two come: neither runs, and none is left half way."""
    async with metered() as (front, _):
        streams = [front.stream(Request(f"r{i}", (5, 6), LONG)) for i in range(front.capacity - 1)]
        with pytest.raises(OverloadedError):
            front.submit([Request(f"together {i}", (5,), GREEDY) for i in range(2)])
        stats = front.stats()
        assert stats.running + stats.waiting == len(streams)
        last = front.submit([Request("alone", (5,), GREEDY)])
        for stream in [*streams, last]:
            await stream.aclose()


async def test_a_policy_may_be_removed_between_check_and_submit(tmp_path: Path) -> None:
    """Its request is refused, and the engine goes on."""
    async with desk_of(tmp_path, [static("main", 3), static("other", 2)]) as one:
        request = asking(1, "other")
        one.front.check(request)
        await asyncio.to_thread(one.desk.remove, "other")
        with pytest.raises(UnknownModelError, match="there is no policy 'other'"):
            one.front.submit([request])
        assert await one.served(asking(1)) == "main"


class ThreadNotes:
    """Stands for a task detector: keeps the names of the threads that it runs on."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def detect(self, excerpt: str) -> Detection:
        self.threads.append(threading.current_thread().name)
        return Detection("code", 1.0)


async def test_tasks_are_detected_on_the_thread_of_the_caller() -> None:
    """Once for each request: rounds do not wait for it."""
    core, notes = core_of(), ThreadNotes()
    core.inputs = InputProcessor(core.inputs.info, TOKENIZER, notes)  # type: ignore[arg-type]
    front = AsyncEngine(core)
    try:
        done = await front.generate(Request("r", (5, 6), GREEDY))
        assert done.stats.task == "code"
        assert notes.threads == [threading.current_thread().name]
    finally:
        await asyncio.to_thread(front.close)


async def test_drain_lets_running_requests_finish_and_takes_no_new_ones() -> None:
    """Shutdown: what runs ends well within the deadline, what comes is refused."""
    async with engine() as front:
        running = asyncio.create_task(front.generate(Request("r", (5, 6), GREEDY)))
        await asyncio.sleep(0)
        await front.drain(10.0)
        assert (await running).finish is FinishReason.LENGTH
        with pytest.raises(DrainingError):
            await front.generate(Request("late", (5,), GREEDY))


async def test_close_ends_streams_that_are_still_open() -> None:
    """No client hangs: closing the engine ends every stream with an abort."""
    async with engine() as front:
        params = SamplingParams(max_tokens=80, temperature=0.0, ignore_eos=True)
        running = asyncio.create_task(front.generate(Request("r", (5, 6), params)))
        await asyncio.sleep(0.01)
        await asyncio.to_thread(front.close)
        assert (await running).finish in (FinishReason.ABORT, FinishReason.LENGTH)
        with pytest.raises(DrainingError):
            await front.generate(Request("late", (5,), GREEDY))


async def test_close_does_not_wait_for_an_engine_that_hangs() -> None:
    """Ten seconds are for a round that runs; a shutdown has no time for one that does not end."""
    async with metered() as (front, _):
        hanging = asyncio.create_task(front.generate(Request("r", (5, 6), GREEDY)))
        while front.heartbeat is None:
            await asyncio.sleep(0.001)
        front.mark_hung("it hangs")
        await asyncio.wait_for(asyncio.to_thread(front.close), 5.0)
        with pytest.raises(EngineError, match="it hangs"):
            await hanging


class Mute(Notes):
    """A sink that takes no record of a round."""

    def emit(self, record: RoundRecord) -> None:
        raise ValueError("no notes today")


async def test_a_sink_that_fails_costs_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    """Telemetry may fail in the very round a request ends: the answer arrives all the same."""
    async with engine(sinks=[Mute()]) as front:
        assert (await front.generate(Request("r", (5, 6), GREEDY))).finish is FinishReason.LENGTH
    assert "could not be reported" in caplog.text


async def test_an_id_can_be_used_again_once_the_engine_has_let_go() -> None:
    """A new request never gets the pieces of an aborted one of the same id."""
    async with engine() as front:
        stream = front.stream(Request("r", (5, 6), SamplingParams(max_tokens=80, temperature=0.0, ignore_eos=True)))
        await anext(stream)
        await stream.aclose()
        with pytest.raises(EngineError, match="still in use"):
            await front.generate(Request("r", (7, 8), GREEDY))
        while front.stats().running or front.stats().waiting:
            await asyncio.sleep(0.01)
        again = await front.generate(Request("r", (7, 8), GREEDY))
        assert_same(again, plain(table("draft-model"), Request("r", (7, 8), GREEDY)))


async def test_work_is_done_between_rounds_on_the_engine_thread() -> None:
    """From any thread, before the first request too; what it returns or raises is the caller's."""
    async with engine() as front:
        assert front.call(lambda: threading.current_thread().name).result(10) == "adaptspec-engine"
        stream = front.stream(Request("r", (5, 6), GREEDY))
        await anext(stream)
        calls = [front.call(lambda i=i: i) for i in range(5)]  # type: ignore[misc]
        assert [await asyncio.wrap_future(call) for call in calls] == list(range(5))
        with pytest.raises(ZeroDivisionError):
            await asyncio.wrap_future(front.call(lambda: 1 // 0))
        assert [delta async for delta in stream][-1].completion is not None


async def test_a_callback_of_a_call_may_call_the_engine() -> None:
    async with engine() as front:
        gate, second = threading.Event(), Future[int]()
        asked = front.call(lambda: gate.wait(10))
        asked.add_done_callback(lambda _: front.call(lambda: second.set_result(7)))
        gate.set()
        assert await asyncio.wait_for(asyncio.wrap_future(second), 10) == 7


async def test_a_callback_of_a_call_that_fails_may_call_the_engine() -> None:
    async with engine() as front:
        gate, began, refused = threading.Event(), threading.Event(), Future[str]()

        def hold() -> None:
            began.set()
            gate.wait(10)

        front.call(hold)
        await asyncio.to_thread(began.wait, 10)
        waiting = front.call(lambda: 1)
        waiting.add_done_callback(lambda _: refused.set_result(str(front.call(lambda: 2).exception(10))))
        front.mark_hung("it hangs")
        assert "it hangs" in refused.result(0)
        gate.set()
        front.resume()


async def test_a_request_that_cannot_be_queued_ends_alone() -> None:
    core = core_of()
    assigned = core.controller.assigned

    def fail_once(request: Request) -> str:
        if request.id == "bad":
            raise MemoryError("no room for it")
        return assigned(request)

    core.controller.assigned = fail_once  # type: ignore[method-assign]
    front = AsyncEngine(core)
    try:
        usual = asyncio.create_task(front.generate(Request("usual", (5, 6), GREEDY)))
        failed = await front.generate(Request("bad", (7, 8), GREEDY))
        assert (failed.finish, failed.error) == (FinishReason.ERROR, "MemoryError: no room for it")
        assert (await usual).finish is FinishReason.LENGTH
        assert front.is_alive
        assert not front.stats().waiting
    finally:
        await asyncio.to_thread(front.close)


async def test_work_for_an_engine_that_stops_is_refused() -> None:
    """Whoever waits for it is told, whether it was asked for before or after."""
    async with engine() as front:
        gate, began = threading.Event(), threading.Event()

        def hold() -> None:
            began.set()
            gate.wait(10)
            raise SystemExit  # not an Exception: it ends the thread

        held = front.call(hold)
        await asyncio.to_thread(began.wait, 10)
        waiting = front.call(lambda: 1)
        gate.set()
        for call in (held, waiting, front.call(lambda: 2)):
            with pytest.raises(EngineStoppedError, match="stopped"):
                await asyncio.wait_for(asyncio.wrap_future(call), 10)
    async with engine() as front:
        front.close()
        with pytest.raises(EngineStoppedError, match="closed"):
            front.call(lambda: 3).result(10)


async def test_one_engine_serves_one_event_loop() -> None:
    """A second loop would wait for ever; it is told so instead."""
    async with engine() as front:
        await front.generate(Request("r", (5, 6), GREEDY))

        def elsewhere() -> None:
            asyncio.run(front.generate(Request("s", (5, 6), GREEDY)))

        with pytest.raises(EngineError, match="another event loop"):
            await asyncio.to_thread(elsewhere)


async def test_how_far_prompts_are_read_can_be_asked_for() -> None:
    """Part by part while they are read, then in full; the place in the queue of those that wait."""
    target = Metered()
    front = AsyncEngine(core_of(target, "0", EngineLimits(max_rows=1, prefill_tokens=20)), "served", max_waiting=4)
    tasks = [asyncio.create_task(front.generate(Request(f"r{i}", (1,) * 70, GREEDY))) for i in range(3)]

    async def reaches(expected: PromptProgress) -> None:
        while front.prompt_progress({"r0"}) != expected:
            await asyncio.sleep(0.001)

    try:
        await asyncio.wait_for(reaches(PromptProgress(0, 70, 0)), 10.0)
        for read in (20, 40, 60, 70):
            target.allowed.release(1)
            await asyncio.wait_for(reaches(PromptProgress(read, 70, 0)), 10.0)
        assert front.prompt_progress({"r1"}) == PromptProgress(0, 0, 0)
        assert front.prompt_progress({"r2"}) == PromptProgress(0, 0, 1)
        assert front.prompt_progress({"r0", "r2"}) == PromptProgress(70, 70, 1)
        assert front.prompt_progress({"nowhere"}) == PromptProgress(0, 0, 0)
    finally:
        target.allowed.release(10_000)
        await asyncio.gather(*tasks)
        front.close()
