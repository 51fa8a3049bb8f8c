"""Who runs in the next round: admission, chunked prefill, preemption, and leaving."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from adaptspec.engine.sequence import Sequence
from adaptspec.errors import EngineError

_log = logging.getLogger(__name__)
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


@dataclass(frozen=True)
class PromptProgress:
    """How far the prompts of some requests are read: `read` of `total` tokens, over those that run.

    `ahead`: requests in the queue before the first of those that wait; 0 if none waits.
    """

    read: int
    total: int
    ahead: int


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
        self._bisection = Bisection()
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0  # sequences that gave way since the start

    @property
    def cache_used(self) -> float:
        """The share of the cache that rows hold, 0 to 1."""
        return 1.0 - self._cache.free_memory

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting

    @property
    def suspecting(self) -> bool:
        """Whether a request that makes rounds fail is sought: who runs may then change with every round."""
        return self._bisection.group is not None

    def prompt_progress(self, request_ids: Collection[str]) -> PromptProgress:
        """How far these requests are. Any thread may ask; numbers of a round that runs may be those before it."""
        read, total = 0, 0
        for sequence in self.running.copy():
            row = sequence.row
            if row is not None and sequence.request.id in request_ids:
                read += min(self._cache.length(row), sequence.prompt_length)
                total += sequence.prompt_length
        places = (place for place, one in enumerate(self.waiting.copy()) if one.request.id in request_ids)
        return PromptProgress(read, total, next(places, 0))

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def next_batch(self) -> Batch:
        """Admit what fits and lay out the coming round. Decoding rows have room for their limits."""
        self._admit()
        decoding: list[Sequence] = []
        limits: list[int] = []
        chunks: list[Chunk] = []
        budget = self._prefill_tokens
        for sequence in list(self.running):
            if sequence.row is None or sequence.finish is not None:
                continue  # gave way to an older one a moment ago, or only its text is still to be read
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
                self._short_of_room &= not sequence.emitted  # it may be what gave way last
            return
        self.running.remove(sequence)
        self._short_of_room = False
        self._give_back(sequence)

    def clear(self, sequence: Sequence) -> None:
        """It has left before it was known whether it makes rounds fail: nobody may wait for that."""
        self._bisection.clear(sequence)

    def failed(self) -> Sequence | None:
        """A round has failed half-way. Returns who made it fail, if that is known now.

        Nothing that was cached can be trusted. Who ran waits at the front of the queue with the tokens it has, and
        reads them again: half of them first, until the culprit has run, and failed, by itself.
        """
        culprit = self._bisection.failed(self.running)
        self._put_back()
        return culprit

    def went_well(self) -> None:
        """A round has gone well. While a culprit is sought: whoever has run well makes way for the next ones."""
        before = self._bisection.group
        if before is None:
            return
        if self._bisection.went_well() and self._bisection.bearable is not None:
            self._bearable = self._bisection.bearable
            self._bearable_until = time.monotonic() + BEARABLE_SECONDS
            _log.warning("no request fails by itself; at most %d run at once for a while", self._bearable)
        after = self._bisection.group
        if after is not before and after is not None:
            self._put_back()

    def _put_back(self) -> None:
        """Have all that run wait at the front of the queue, in their order, and read their tokens again."""
        for sequence in reversed(self.running):
            self._give_back(sequence)
            self.waiting.appendleft(sequence)
        self.running.clear()
        self._short_of_room = False

    def _next(self) -> Sequence | None:
        """Who may be admitted now."""
        if not self.waiting or not self._free_rows or self._short_of_room:
            return None  # who gave way waits until somebody leaves: let back in at once, it would be driven out again
        if len(self.running) >= self._bearable and time.monotonic() < self._bearable_until:
            return None
        group = self._bisection.group
        if group is None:
            return self.waiting[0]
        return next((sequence for sequence in self.waiting if sequence in group), None)

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
            self.preemptions += 1
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


class Bisection:
    """Finds the request that makes rounds fail: who was in such a round runs again in halves, at last each by itself.

    The first group runs until each of it has read its tokens and decoded once; a group of one that fails is it. A
    failure that goes away by itself thus harms nobody. One that takes several requests together (memory that is short
    for so many at once) is nobody's either: `bearable` says how many were seen to run well.
    """

    def __init__(self) -> None:
        self._groups: list[list[Sequence]] = []
        self._marks: dict[int, int] = {}
        self._found = False
        self.bearable: int | None = None

    @property
    def group(self) -> list[Sequence] | None:
        """Who may run, in the order they came; None when nobody is under suspicion."""
        return self._groups[0] if self._groups else None

    def failed(self, ran: list[Sequence]) -> Sequence | None:
        """A round of these has failed. Returns the culprit, if it is known now."""
        if not self._groups:
            self._found, self.bearable = False, None
        rest = self._groups[1:]
        if len(ran) < 2:
            self._found = True
            self._groups = rest
            return ran[0] if ran else None
        half = len(ran) // 2
        self._groups = [list(ran[:half]), list(ran[half:]), *rest]
        self._marks |= {id(sequence): len(sequence.tokens) for sequence in ran}
        return None

    def clear(self, sequence: Sequence) -> None:
        """Suspect it no longer."""
        groups = [[one for one in group if one is not sequence] for group in self._groups]
        self._groups = [group for group in groups if group]
        self._marks.pop(id(sequence), None)

    def went_well(self) -> bool:
        """A round has gone well. Returns whether that has just cleared the last suspects, and found no culprit."""
        group = self._groups[0]
        # One token comes from reading what it had again; what fails may fail in decoding only.
        if any(one.finish is None and len(one.tokens) < self._marks[id(one)] + 2 for one in group):
            return False
        self._groups.pop(0)
        self.bearable = max(len(group), self.bearable or 1)
        if self._groups:
            return False
        self._marks.clear()
        return not self._found
