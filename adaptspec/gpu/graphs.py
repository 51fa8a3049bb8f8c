"""CUDA graphs of the parts of a round: captured once for every shape, replayed by one call."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch


class Captured:
    """Functions by their key, which must read and write the same memory at every call and ask the host nothing."""

    def __init__(self) -> None:
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None

    def capture(self, key: Hashable, function: Callable[[], None]) -> None:
        """Run it twice, so that all it needs is compiled and allocated, and capture it. Largest shapes come first: the
        memory they need in between serves all others.
        """
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            function()
        self._pool = self._pool or graph.pool()
        self._graphs[key] = graph

    def run(self, key: Hashable, function: Callable[[], None]) -> None:
        """Replay what was captured under this key; what was not is run as it stands."""
        graph = self._graphs.get(key)
        if graph is None:
            function()
        else:
            graph.replay()
