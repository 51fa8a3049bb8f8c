"""Who runs in the next round: admission, chunked prefill, preemption, and leaving."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from adaptspec.engine.sequence import Sequence
from adaptspec.errors import EngineError

BEARABLE_SECONDS = 60.0  # how long fewer rows run after more of them failed together


@dataclass(frozen=True)
class Chunk:
    """Part of a prompt to be read this round; `last` when it reaches the end and so yields a token."""

    sequence: Sequence
    start: int
    count: int
    last: bool

    @property
    def scored(self) -> bool:
        """Whether log-probabilities of prompt tokens that it predicts are still wanted."""
        wanted = self.sequence.request.sampling.prompt_logprobs is not None
        return wanted and len(self.sequence.prompt_logprobs) < self.sequence.prompt_length - 1


class Batch:
    """The sequences of one round: those that decode, each with the deepest draft it has room for, and prompt chunks."""

    def __init__(self, decoding: list[Sequence], limits: list[int], chunks: list[Chunk]) -> None:
        self.decoding = decoding
        self.limits = limits
        # Those that yield a token first, as `emitting` has them.
        self.chunks = sorted(chunks, key=lambda chunk: not chunk.last)
        # Those that gain tokens: the decoding ones first, then those whose prompt ends in this round.
        self.emitting = [*decoding, *(chunk.sequence for chunk in self.chunks if chunk.last)]
        self.rows = np.array([sequence.row for sequence in self.emitting], dtype=np.int64)
        self.prefill_tokens = sum(chunk.count for chunk in chunks)


class Cache(Protocol):
    """Where tokens of rows are kept; a `Runner` is one."""

    @property
    def free_memory(self) -> float:
        """See `Runner.free_memory`."""

    def reserve(self, row: int, length: int) -> bool:
        """See `Runner.reserve`."""

    def length(self, row: int) -> int:
        """See `Runner.length`."""

    def free(self, row: int) -> None:
        """See `Runner.free`."""


class Scheduler:
    """First come, first served, at most `max_rows` at a time, `prefill_tokens` of prompt per round.

    When the cache runs out of room the newest sequence gives way: it waits at the front of the queue with the tokens
    it has until another leaves, and reads them again then; its output does not change. Drafts never drive anybody
    out: they get what room is left.
    """

    def __init__(
        self,
        cache: Cache,
        max_rows: int,
        *,
        prefill_tokens: int,
        max_depth: int,
        on_start: Callable[[Sequence], None],
        on_leave: Callable[[int], None],
    ) -> None:
        self._cache = cache
        self._prefill_tokens = prefill_tokens
        self._max_depth = max_depth
        self._free_rows = list(range(max_rows - 1, -1, -1))
        self._on_start = on_start
        self._on_leave = on_leave
        self._short_of_room = False
        self._bearable, self._bearable_until = max_rows, 0.0
        self.only: Collection[Sequence] | None = None  # None: anybody may be admitted
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not self.running and not self.waiting

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.waiting.append(sequence)

    def next_batch(self) -> Batch:
        """Admit what fits and lay out the coming round. Decoding rows have room for their limits."""
        self._admit()
        decoding: list[Sequence] = []
        limits: list[int] = []
        chunks: list[Chunk] = []
        budget = self._prefill_tokens
        for sequence in list(self.running):
            if sequence.row is None:
                continue  # gave way to an older one a moment ago
            cached = self._cache.length(sequence.row)
            missing = sequence.length - cached
            # The first token always comes from reading the prompt: no draft may delay it.
            if missing == 1 and sequence.emitted:
                if self._make_room(sequence):
                    decoding.append(sequence)
                    limits.append(self._draft_room(sequence))
            elif budget > 0:
                count = min(missing, budget)
                budget -= count
                chunks.append(Chunk(sequence, cached, count, last=count == missing))
        return Batch(decoding, limits, chunks)

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and free its row."""
        if sequence.row is None:
            if sequence in self.waiting:
                self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        self._short_of_room = False
        self._give_back(sequence)

    def put_back(self) -> None:
        """Have all that run wait at the front of the queue, in their order, and read their tokens again."""
        for sequence in reversed(self.running):
            self._give_back(sequence)
            self.waiting.appendleft(sequence)
        self.running.clear()
        self._short_of_room = False

    def bear(self, rows: int) -> None:
        """For a while, run at most so many rows: more have failed where so many went well."""
        self._bearable, self._bearable_until = rows, time.monotonic() + BEARABLE_SECONDS

    def _next(self) -> Sequence | None:
        """Who may be admitted now."""
        if not self.waiting or not self._free_rows or self._short_of_room:
            return None  # who gave way waits until somebody leaves: let back in at once, it would be driven out again
        if len(self.running) >= self._bearable and time.monotonic() < self._bearable_until:
            return None
        if self.only is None:
            return self.waiting[0]
        return next((sequence for sequence in self.waiting if sequence in self.only), None)

    def _admit(self) -> None:
        while (sequence := self._next()) is not None:
            row = self._free_rows[-1]
            if not self._cache.reserve(row, sequence.length + 1):
                self._cache.free(row)
                return
            self._free_rows.pop()
            self.waiting.remove(sequence)
            sequence.row = row
            self.running.append(sequence)
            self._on_start(sequence)

    def _make_room(self, sequence: Sequence) -> bool:
        """Room for one more token, at the cost of newer sequences; False if it was the newest and gave way itself."""
        while not self._cache.reserve(held_row(sequence), sequence.length):
            newest = self.running[-1]
            if len(self.running) == 1:
                raise EngineError(f"the cache is too small for {sequence.length} tokens; give more cache tokens")
            self.running.remove(newest)
            self._give_back(newest)
            self.waiting.appendleft(newest)
            self._short_of_room = True
            if newest is sequence:
                return False
        return True

    def _draft_room(self, sequence: Sequence) -> int:
        """The deepest draft that finds room without anybody giving way."""
        depth = max(0, min(sequence.depth_limit, self._max_depth))
        while depth and not self._cache.reserve(held_row(sequence), sequence.length + depth):
            depth //= 2
        return depth

    def _give_back(self, sequence: Sequence) -> None:
        row = held_row(sequence)
        sequence.row = None
        self._cache.free(row)
        self._free_rows.append(row)
        self._on_leave(row)


def held_row(sequence: Sequence) -> int:
    """The row of a sequence that runs."""
    if sequence.row is None:
        raise ValueError("the sequence holds no row")
    return sequence.row
