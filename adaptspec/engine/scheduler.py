"""Who runs in the next round: admission, chunked prefill, preemption, and leaving.

Knows sequences and how much room the target's cache has; it knows nothing of drafts or policies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from adaptspec.engine.sequence import Sequence
from adaptspec.models.runner import Runner


@dataclass(frozen=True)
class Chunk:
    """Part of a prompt to be read this round; `last` when it reaches the end and yields a token."""

    sequence: Sequence
    start: int
    count: int

    @property
    def last(self) -> bool:
        """Whether the chunk's final token is the newest the sequence has."""
        return self.start + self.count == len(self.sequence.tokens)


@dataclass(frozen=True)
class Batch:
    """The sequences of one round: those that decode, and the prompt chunks read beside them."""

    decoding: list[Sequence] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.decoding or self.chunks)


class Scheduler:
    """First come, first served, at most `max_rows` at a time, `prefill_tokens` of prompt per round.

    When the cache runs out of room the newest sequence gives way: it waits at the front of the queue
    with the tokens it has, and reads them again later; its output does not change.
    """

    def __init__(
        self,
        target: Runner,
        max_rows: int,
        *,
        prefill_tokens: int,
        max_depth: int,
        on_start: Callable[[Sequence], None],
        on_leave: Callable[[int], None],
    ) -> None:
        self._target = target
        self._prefill_tokens = prefill_tokens
        self._max_depth = max_depth
        self._free_rows = list(range(max_rows - 1, -1, -1))
        self._on_start = on_start
        self._on_leave = on_leave
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
        """Admit what fits and lay out the coming round. Every decoding row has room for its deepest draft."""
        self._admit()
        batch = Batch()
        budget = self._prefill_tokens
        for sequence in list(self.running):
            if sequence.row is None:
                continue  # gave way to an older one a moment ago
            cached = self._target.length(sequence.row)
            missing = len(sequence.tokens) - cached
            # The first token always comes from reading the prompt: no draft may delay it.
            if missing == 1 and sequence.emitted:
                if self._make_room(sequence):
                    batch.decoding.append(sequence)
            elif budget > 0:
                count = min(missing, budget)
                budget -= count
                batch.chunks.append(Chunk(sequence, cached, count))
        return batch

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and free its row."""
        if sequence.row is None:
            if sequence in self.waiting:
                self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        self._give_back(sequence)

    def _admit(self) -> None:
        while self.waiting and self._free_rows:
            row = self._free_rows[-1]
            if not self._target.reserve(row, len(self.waiting[0].tokens) + 1):
                self._target.free(row)
                return
            self._free_rows.pop()
            sequence = self.waiting.popleft()
            sequence.row = row
            self.running.append(sequence)
            self._on_start(sequence)

    def _make_room(self, sequence: Sequence) -> bool:
        length = len(sequence.tokens) + min(sequence.depth_limit, self._max_depth)
        while not self._target.reserve(held_row(sequence), length):
            newest = self.running[-1]
            self.running.remove(newest)
            self._give_back(newest)
            self.waiting.appendleft(newest)
            if newest is sequence:
                return False
        return True

    def _give_back(self, sequence: Sequence) -> None:
        row = held_row(sequence)
        sequence.row = None
        self._target.free(row)
        self._free_rows.append(row)
        self._on_leave(row)


def held_row(sequence: Sequence) -> int:
    """The row of a sequence that runs."""
    if sequence.row is None:
        raise ValueError("the sequence holds no row")
    return sequence.row
