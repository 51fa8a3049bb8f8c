"""The engine for an event loop: requests go in, streams of deltas come out; one thread owns all model state.

The event loop and the engine thread communicate in two ways only: an inbox of commands, and `call_soon_threadsafe`
with all deltas of a round at once.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar, cast

from adaptspec.engine.core import EngineCore
from adaptspec.engine.fault_isolation import DEVICE_FAILURES
from adaptspec.engine.scheduler import PromptProgress
from adaptspec.errors import DrainingError, EngineError, EngineStoppedError, OverloadedError
from adaptspec.models.runner import ModelInfo
from adaptspec.progress import report_progress, set_progress_callback
from adaptspec.quantity import quantity
from adaptspec.request import Grammar, Request
from adaptspec.results import Completion, Delta, FinishReason

_log = logging.getLogger(__name__)
T = TypeVar("T")
_Command: TypeAlias = "Callable[[], list[Delta]] | None"  # None: the thread is to end
# Seconds without a request before idle work begins: about as long as a request may have to wait for such work.
QUIET_SECONDS = 0.05


@dataclass(frozen=True)
class EngineStats:
    """How many requests run and wait right now.

    `preemptions`: requests preempted since the start. `cache_used`: the share of the cache that running requests hold.
    `prefix_queried`, `prefix_hits` and `prefix_evictions`: see `PrefixStats`.
    """

    running: int
    waiting: int
    preemptions: int = 0
    cache_used: float = 0.0
    prefix_queried: int = 0
    prefix_hits: int = 0
    prefix_evictions: int = 0


class Stream:
    """The output of requests piece by piece; the last piece of each carries its completion.

    Iterating raises EngineError if the engine stops. Closing it early, or cancelling it, aborts unfinished requests.
    """

    def __init__(self, engine: AsyncEngine, requests: Sequence[Request]) -> None:
        self.pieces: asyncio.Queue[Delta | None] = asyncio.Queue()  # None: no more will come
        self._engine = engine
        self._running = {request.id for request in requests}

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Delta:
        if not self._running:
            raise StopAsyncIteration
        try:
            delta = await self.pieces.get()
        except BaseException:
            await self.aclose()
            raise
        if delta is None:
            await self.aclose()
            raise EngineError(self._engine.failure_reason)
        if delta.completion is not None:
            self._running.discard(delta.request_id)
        return delta

    async def aclose(self) -> None:
        """Abort the requests that have not ended."""
        while self._running:
            self._engine.abort(self._running.pop())


class AsyncEngine:
    """Serves requests from one event loop."""

    def __init__(
        self,
        core: EngineCore,
        name: str | None = None,
        max_waiting: int = 1024,
        on_idle: Callable[[], bool] | None = None,
        on_start: Callable[[], None] | None = None,
    ) -> None:
        """`name` is the model's name for clients (None: its own). `on_start` is called first on the engine's thread.

        `on_idle` is called on the engine's thread while there are no requests, until it returns False. Each call does a
        small piece of other work, which must not raise; a new request waits for the call to return.
        """
        self._core = core
        self._on_idle = on_idle
        self._on_start = on_start
        if name is not None:
            core.inputs.info = replace(core.inputs.info, name=name)
        self._max_waiting = max_waiting
        self._inbox: SimpleQueue[_Command] = SimpleQueue()
        # None: the stream was closed, but the engine has not ended the request yet.
        self._streams: dict[str, asyncio.Queue[Delta | None] | None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining = False
        self._closed = False
        self._failure: str | None = None
        self._hung: str | None = None  # reason for which the engine counts as hung, although its thread exists
        self._progress = 0  # number of progress reports; written by the engine thread only
        self._busy = False  # see `heartbeat`
        self._calls: set[Future[Any]] = set()
        self._ended = False
        self._lock = threading.Lock()  # guards the start of the thread and the calls that wait for it
        self._thread = threading.Thread(target=self._run, name="adaptspec-engine", daemon=True)

    @property
    def target(self) -> ModelInfo:
        return self._core.inputs.info

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(self._core.controller.policies)

    @property
    def default_policy(self) -> str:
        return self._core.controller.default

    @property
    def capacity(self) -> int:
        """Maximum number of requests in flight, running and waiting."""
        return self._max_waiting + self._core.limits.max_rows

    def check(self, request: Request) -> None:
        """Check whether the request can be served, without queueing it. Raises RequestError."""
        self._core.check(request)

    def compile_grammar(self, grammar: Grammar, max_bytes: int | None = None) -> Grammar:
        """The same grammar with its compiled form, from any thread.

        Raises:
            RequestError: it cannot be used.
            OverloadedError: the grammars of all requests would take more than `max_bytes` (None: no bound).
        """
        return self._core.inputs.compile_grammar(grammar, max_bytes)

    @property
    def is_alive(self) -> bool:
        """Whether the engine takes requests or can finish the current ones."""
        return self._failure is None and self._hung is None and not self._closed

    @property
    def heartbeat(self) -> int | None:
        """Number of progress reports of the engine thread so far, or None while it has nothing to do.

        It reports before every command and many times within a round: see `report_progress`. Any thread may read it.
        """
        return self._progress if self._busy else None

    def stack(self) -> str:
        """The Python stack of the engine thread at this moment, for the log. Empty if the thread does not run."""
        frame = None if self._thread.ident is None else sys._current_frames().get(self._thread.ident)
        return "" if frame is None else "".join(traceback.format_stack(frame))

    def mark_hung(self, reason: str) -> None:
        """The engine hangs: end every stream with an error and take no requests, until `resume`. On the event loop."""
        self._hung = reason
        for request_id, stream in self._streams.items():
            if stream is not None:
                stream.put_nowait(None)
            self.abort(request_id)  # if the engine resumes, this request has no client
        self._fail_calls()

    def resume(self) -> None:
        self._hung = None

    def stats(self) -> EngineStats:
        """Requests running and waiting; those still in the inbox count as waiting."""
        scheduler = self._core.scheduler
        running = len(scheduler.running)
        waiting = max(0, len(self._streams) - running)
        prefixes = scheduler.prefixes.stats
        return EngineStats(
            running,
            waiting,
            scheduler.preemptions,
            scheduler.cache_used,
            prefixes.queried,
            prefixes.hits,
            prefixes.evictions,
        )

    def prompt_progress(self, request_ids: Collection[str]) -> PromptProgress:
        """Progress of these requests in the queue and in reading their prompts. Any thread may call it."""
        return self._core.scheduler.prompt_progress(request_ids)

    def submit(self, requests: Sequence[Request]) -> Stream:
        """Queue checked requests, all or none of them; their output comes in one stream.

        Raises:
            UnknownModelError: the policy of a request was removed.
            OverloadedError: there is no room for all of them now; DrainingError: nor will there be.
            EngineStoppedError: the engine has stopped.
        """
        self._admit(requests)
        # On this thread, so that rounds do not wait for detected tasks and compiled grammars.
        prepared = [self._core.inputs.prepared(request) for request in requests]
        stream = Stream(self, requests)
        for request in prepared:
            self._streams[request.id] = stream.pieces
            self._inbox.put(lambda request=request: self._add(request))  # type: ignore[misc]
        return stream

    def stream(self, request: Request) -> Stream:
        """The output of one request. Raises as `check` and `submit` do."""
        self.check(request)
        return self.submit([request])

    async def generate(self, request: Request) -> Completion:
        """The finished request. Raises as `stream` does."""
        async with aclosing(self.stream(replace(request, streamed=False))) as pieces:
            async for delta in pieces:
                if delta.completion is not None:
                    return delta.completion
        raise EngineError("the engine ended the stream without a completion")

    def abort(self, request_id: str) -> None:
        """Abort a request whose stream is no longer read."""
        if request_id in self._streams:
            self._streams[request_id] = None
            self._inbox.put(lambda: self._core.abort(request_id))

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` on the engine thread between two rounds. Any thread may call it; errors are set on the future.

        The future holds EngineStoppedError if the engine has stopped, or stops before it runs `work`.
        """
        future: Future[T] = Future()

        def command() -> list[Delta]:
            with self._lock:
                if future not in self._calls or not future.set_running_or_notify_cancel():
                    self._calls.discard(future)
                    return []
            try:
                result, error = work(), None
            except Exception as caught:  # noqa: BLE001 - the caller gets it; rounds go on
                result, error = None, caught
            with self._lock:
                if future not in self._calls:
                    return []  # its caller has got an EngineStoppedError meanwhile
                self._calls.discard(future)
            # Without the lock: callbacks of the future run here, and may call the engine.
            if error is None:
                future.set_result(cast("T", result))
            else:
                future.set_exception(error)
            return []

        with self._lock:
            if self._ended or self._closed or self._hung is not None:
                future.set_exception(EngineStoppedError(self.failure_reason))
                return future
            self._calls.add(future)
            self._start()
            self._inbox.put(command)
        return future

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, wait up to `seconds` for the current ones, then abort the rest."""
        self._draining = True
        deadline = asyncio.get_running_loop().time() + seconds
        while self._streams and self.is_alive and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        for request_id in list(self._streams):
            self._inbox.put(lambda rid=request_id: self._core.abort(rid))  # type: ignore[misc]

    def close(self) -> None:
        """Stop the engine thread; requests still in flight are aborted.

        Waits at most ten seconds for a running round; its result is discarded.
        """
        self._draining = self._closed = True
        if self._thread.is_alive():
            self._inbox.put(None)
            self._thread.join(timeout=0.1 if self._hung else 10)

    @property
    def failure_reason(self) -> str:
        """Why the engine takes no requests, for errors."""
        return f"the engine has stopped: {self._failure or self._hung or 'it was closed'}"

    def _admit(self, requests: Sequence[Request]) -> None:
        if self._failure is not None or self._hung is not None:
            raise EngineStoppedError(self.failure_reason)
        if self._draining:
            raise DrainingError
        if len(self._streams) + len(requests) > self.capacity:
            given = quantity(len(self._streams), "request")
            raise OverloadedError(f"the engine has {given} in flight; send the request again later")
        for request in requests:
            if request.id in self._streams:
                raise EngineError(f"request id {request.id} is still in use; give every request a unique id")
            self._core.check_policy(request)  # it may have been removed since `check`
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            with self._lock:
                self._start()
        elif self._loop is not loop:
            raise EngineError("this engine serves another event loop; build one engine per loop")

    def _start(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def _run(self) -> None:
        """The engine thread. However it ends, all waiting streams and calls get an error."""
        set_progress_callback(self._count_progress)
        try:
            if self._on_start is not None:
                self._on_start()
            self._serve()
        except BaseException as error:  # noqa: BLE001
            # The loop around the rounds has failed, so the engine's state cannot be trusted.
            _log.exception("the engine thread has stopped")
            self._failure = f"{type(error).__name__}: {error}"
            if isinstance(error, DEVICE_FAILURES):
                self._failure += " (the device has failed; restart the server)"
        finally:
            self._busy = False
            self._call_loop(self._end_streams)
            with self._lock:
                self._ended = True
            self._fail_calls()

    def _count_progress(self) -> None:
        self._progress += 1

    def _serve(self) -> None:
        """Run commands, then a round; sleep only if there is nothing to do."""
        while True:
            deltas: list[Delta] = []
            sleep = self._core.idle
            self._busy = not sleep
            report_progress()
            while sleep or not self._inbox.empty():
                command = self._next_command() if sleep else self._inbox.get()
                sleep = False
                self._busy = True
                report_progress()
                if command is None:
                    self._deliver(deltas + self._core.abort_all(FinishReason.ABORT, "the engine was closed"))
                    return
                deltas += command()
            if not self._core.idle:
                deltas += self._round()
            self._deliver(deltas)

    def _next_command(self) -> _Command:
        """Wait for a command; meanwhile do idle work."""
        timeout, working = QUIET_SECONDS, self._on_idle is not None
        while working:
            try:
                return self._inbox.get(timeout=timeout)
            except Empty:
                timeout, self._busy = 0.0, True
                report_progress()
                working = self._on_idle is not None and self._on_idle()
        self._busy = False
        return self._inbox.get()

    def _add(self, request: Request) -> list[Delta]:
        try:
            self._core.add(request)
        except Exception as error:  # noqa: BLE001 - other requests go on
            _log.exception("request %s could not be queued; it ends with an error", request.id)
            return self._core.refuse(request, error)
        return []

    def _round(self) -> list[Delta]:
        try:
            return self._core.step()
        except DEVICE_FAILURES:
            raise  # the device computes nothing any more, so no request can be served
        except Exception as error:  # noqa: BLE001
            # A failed round must end neither the server nor the other requests of the round.
            _log.exception("a round failed; the request that made it fail ends with an error")
            return self._recover(error)

    def _recover(self, error: Exception) -> list[Delta]:
        try:
            return self._core.recover(error)
        except DEVICE_FAILURES:
            raise
        except Exception as worse:  # noqa: BLE001
            _log.exception("recovery from a failed round has failed; all requests end")
            return self._core.abort_all(FinishReason.ERROR, f"{type(worse).__name__}: {worse}")

    def _deliver(self, deltas: list[Delta]) -> None:
        if deltas:
            self._call_loop(lambda: self._hand_out(deltas))

    def _call_loop(self, call: Callable[[], None]) -> None:
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            _log.info("the event loop has closed; results are discarded")

    def _fail_calls(self) -> None:
        """Fail the pending calls, without the lock: callbacks of their futures may call the engine."""
        with self._lock:
            calls, self._calls = self._calls, set()
        for future in calls:
            if not future.done():
                future.set_exception(EngineStoppedError(self.failure_reason))

    def _end_streams(self) -> None:
        """End all streams with an error: the engine thread has ended. On the event loop."""
        for stream in self._streams.values():
            if stream is not None:
                stream.put_nowait(None)
        self._streams.clear()

    def _hand_out(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            if delta.completion is not None:
                stream = self._streams.pop(delta.request_id, None)
            else:
                stream = self._streams.get(delta.request_id)
            if stream is not None:
                stream.put_nowait(delta)
