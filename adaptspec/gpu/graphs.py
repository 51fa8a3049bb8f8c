"""CUDA graphs of passes, and copies between the host and a device that do not make the host wait."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """Make `device` torch's current device, on which Triton launches and graphs are captured."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class CudaGraphCache:
    """Graphs of functions that read and write the same memory at every call and never ask the host.

    On a CPU nothing is captured: functions are called.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        self._stream: Any = None

    def capture(self, key: Hashable, function: Callable[[], object]) -> None:
        """Call `function` once, which compiles and allocates what it needs, and capture a second call.

        Capture the largest shapes first: their memory serves all others.
        """
        if self._device.type != "cuda" or key in self._graphs:
            return
        with current_device(self._device):
            # One stream for all graphs, since libraries keep memory for every stream that they have worked on. Without
            # it torch would capture on a stream of whichever device captured first.
            stream = self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                function()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with _without_collection(), torch.cuda.graph(graph, pool=self._pool, stream=stream):
                function()
        self._pool = self._pool or graph.pool()
        self._graphs[key] = graph

    def run(self, key: Hashable, function: Callable[[], object]) -> None:
        """Replay the graph of `key`, or call `function` if there is none."""
        graph = self._graphs.get(key)
        if graph is not None:
            graph.replay()
            return
        with current_device(self._device):
            function()

    def clear(self) -> None:
        """Delete all graphs; from now on functions are called."""
        self._graphs.clear()


@contextmanager
def _without_collection() -> Iterator[None]:
    """Keep the garbage collector off: it may free the graph of an earlier engine, which makes a capture invalid."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def host_memory(size: int, device: torch.device) -> torch.Tensor:
    """`size` bytes on the host to be copied to `device`.

    They are pinned for CUDA, so that the host does not wait for the copy. torch does not reuse the memory before the
    device has read it, even if this tensor was deleted.
    """
    return torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")


class DeviceMark:
    """The point after all work launched on a device so far; satisfies `models.async_runner.Mark`."""

    def __init__(self, device: torch.device) -> None:
        self._event: Any = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(device))
        self._time = time.perf_counter()  # on a CPU all work has run

    def seconds_since(self, earlier: DeviceMark) -> float:
        """See `Mark`."""
        if self._event is None:
            return self._time - earlier._time
        self._event.synchronize()
        return 1e-3 * float(earlier._event.elapsed_time(self._event))


class Download:
    """A copy of a tensor of a device on its way to the host."""

    def __init__(self, source: torch.Tensor) -> None:
        self._copy = source.to("cpu", non_blocking=True, copy=True)
        self._done: Any = None
        if source.device.type == "cuda":
            self._done = torch.cuda.current_stream(source.device).record_event()

    def wait(self) -> torch.Tensor:
        """The tensor on the host, once it is there."""
        if self._done is not None:
            self._done.synchronize()
            self._done = None
        return self._copy
