"""CUDA graphs of the parts of a round: captured once for every shape, replayed by one call."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from adaptspec.gpu.staging import at_work


class Captured:
    """Functions of a shape, which read and write the same memory at every call and ask the host nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: dict[tuple[str, int, Any], torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        self._aside: Any = None

    def capture(
        self, function: Callable[[int, Any], None], size: int, other: Any, before: Callable[[], object] = bool
    ) -> None:
        """Run it once, so that all it needs is compiled and allocated, and capture it; `before` is called before both.

        Nothing is captured twice. Largest shapes come first: the memory that they need in between serves all others.
        """
        key, graph = (function.__qualname__, size, other), torch.cuda.CUDAGraph()
        if key in self._graphs:
            return
        with at_work(self._device):
            # One for all: libraries keep memory for every stream that they have worked on.
            stream = self._aside = self._aside or torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                before()
                function(size, other)
            torch.cuda.current_stream().wait_stream(stream)
            before()
            # Without a stream of its own, torch captures on one of whichever device captured first.
            with _without_collection(), torch.cuda.graph(graph, pool=self._pool, stream=stream):
                function(size, other)
        self._pool = self._pool or graph.pool()
        self._graphs[key] = graph

    def drop(self) -> None:
        """Forget what was captured; it is run as it stands from now on."""
        self._graphs.clear()

    def run(self, function: Callable[[int, Any], None], size: int, other: Any) -> None:
        """Replay what was captured of it; what was not is run as it stands."""
        graph = self._graphs.get((function.__qualname__, size, other))
        if graph is not None:
            graph.replay()
            return
        with at_work(self._device):
            function(size, other)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Keep Python's garbage collector off: a graph of an earlier executor that it frees makes a capture invalid."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
