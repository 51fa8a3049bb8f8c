"""Streams, events and graphs of pretended CUDA (see `pretend`): what is under way, and what is waited for.

A copy that does not block lands when the host waits for an event or a stream behind it: until then a download holds
rubbish, and the source of an upload must not change. Kernels run when they are called, on whatever stream. They run
while a graph is captured, too; its replay repeats the calls on the memory they had, whatever Python would do by then.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import adaptspec

PACKAGE = str(Path(adaptspec.__file__).parent)
OURS = (str(Path(__file__).parent / "pretend"), str(Path(torch.__file__).parent))
RUBBISH = 77


class DeviceError(RuntimeError):
    """What would fail on a real device, or be wrong there without notice."""


def line() -> str:
    """The innermost line of the package at work, or of whoever else asks."""
    frame: Any = sys._getframe(1)
    outside = "?"
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE):
            return f"{name[len(PACKAGE) + 1 :]}:{frame.f_lineno}"
        if outside == "?" and not name.startswith(OURS):
            outside = f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return outside


class Copy:
    """A copy under way between the device and the `host`'s pinned memory."""

    def __init__(self, host: torch.Tensor, *, upload: bool) -> None:
        self.host, self.numbers, self.upload, self.line, self.landed = host, host.clone(), upload, line(), False
        if not upload:
            host.fill_(torch.nan if host.is_floating_point() else RUBBISH)

    def land(self) -> None:
        if self.landed:
            return
        self.landed = True
        if not self.upload:
            self.host.copy_(self.numbers)
        elif not torch.equal(self.host.nan_to_num(), self.numbers.nan_to_num()):
            raise DeviceError(f"{self.line}: pinned memory was written on before its upload was waited for")


class Queue:
    """Counts by line: `syncs`, `uploads`, `downloads`, of these two the `blocking` ones, and `replays` of graphs."""

    active: Queue

    def __init__(self) -> None:
        self.current = Stream()
        self.under_way: list[Copy] = []
        self.recording: list[Callable[[], object]] | None = None
        self.clear()

    def clear(self) -> None:
        """Count anew."""
        self.syncs, self.uploads, self.downloads, self.blocking, self.replays = (Counter[str]() for _ in range(5))

    def stubs(self) -> dict[str, Any]:
        """What takes the place of `torch.cuda`'s own, by name."""
        return {
            "Stream": Stream,
            "Event": Event,
            "CUDAGraph": Graph,
            "graph": self._capture,
            "graph_pool_handle": lambda: (0, 0),
            "is_current_stream_capturing": lambda: self.recording is not None,
            "current_stream": lambda *_: self.current,
            "stream": self._on,
            "synchronize": lambda *_: self.wait(self.under_way),
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "get_device_name": lambda *_: "pretended",
            "get_device_capability": lambda *_: (9, 0),
            "get_device_properties": lambda *_: SimpleNamespace(multi_processor_count=4, major=9, minor=0),
            "mem_get_info": lambda *_: (2 << 30, 4 << 30),
            "empty_cache": lambda: None,
            "device": lambda *_: nullcontext(),
        }

    def copied(self, *, upload: bool, blocks: bool) -> None:
        """Count a copy; one that blocks and goes to the host is waited for."""
        (self.uploads if upload else self.downloads)[line()] += 1
        if blocks:
            self.blocking[line()] += 1
            self._refuse_in_capture("copies from or to memory that is not pinned, or waits for it")
        if blocks and not upload:
            self.wait(self.current.copies)

    def wait(self, copies: list[Copy]) -> None:
        """The host waits, for these copies among others."""
        self.syncs[line()] += 1
        self._refuse_in_capture("makes the host wait")
        for copy in copies:
            copy.land()
        copies.clear()

    def start(self, host: torch.Tensor, *, upload: bool) -> None:
        copy = Copy(host, upload=upload)
        for copies in (self.current.copies, self.under_way):
            copies[:] = [*(one for one in copies if not one.landed), copy]

    def ran(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """If a graph is captured, it has this call from now on."""

        def again() -> None:
            for old, new in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)

        if self.recording is not None:
            self.recording.append(again)

    def _refuse_in_capture(self, what: str) -> None:
        if self.recording is not None:
            raise DeviceError(f"{line()}: {what}, while a graph is captured")

    @contextmanager
    def _on(self, stream: Stream | None) -> Iterator[None]:
        before, self.current = self.current, stream or self.current
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def _capture(self, graph: Graph, *_: Any, stream: Stream | None = None, **__: Any) -> Iterator[None]:
        with self._on(stream):
            graph.capture_begin()
            try:
                yield
            finally:
                graph.capture_end()


class Stream:
    def __init__(self, *_: Any, **__: Any) -> None:
        self.copies: list[Copy] = []

    def synchronize(self) -> None:
        Queue.active.wait(self.copies)

    def wait_stream(self, other: Stream) -> None:
        self.copies += [copy for copy in other.copies if copy not in self.copies]

    def wait_event(self, event: Event) -> None:
        self.copies += event.copies

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event


class Event:
    def __init__(self, *_: Any, **__: Any) -> None:
        self.copies: list[Copy] = []
        self._seconds = 0.0

    def record(self, stream: Stream | None = None) -> None:
        self.copies, self._seconds = list((stream or Queue.active.current).copies), time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        (stream or Queue.active.current).wait_event(self)

    def synchronize(self) -> None:
        Queue.active.wait(self.copies)

    def query(self) -> bool:
        """Whether all is done; it is once somebody asks."""
        for copy in self.copies:
            copy.land()
        return True

    def elapsed_time(self, later: Event) -> float:
        """Milliseconds."""
        return (later._seconds - self._seconds) * 1e3


class Graph:
    def __init__(self, *_: Any, **__: Any) -> None:
        self._calls: list[Callable[[], object]] = []

    def capture_begin(self, *_: Any, **__: Any) -> None:
        Queue.active.recording = self._calls = []

    def capture_end(self) -> None:
        Queue.active.recording = None

    def replay(self) -> None:
        Queue.active.replays[line()] += 1
        for call in self._calls:
            call()

    def pool(self) -> tuple[int, int]:
        return 0, 0

    def reset(self) -> None:
        self._calls = []
