"""Decides which requests run in the next round: admission, chunked prefill, preemption and release."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np

from adaptspec.engine.fault_isolation import FaultBisection
from adaptspec.engine.prefix_cache import Awaited, PrefixCache
from adaptspec.engine.row_caches import Caches
from adaptspec.engine.sequence import Sequence
from adaptspec.errors import EngineError
from adaptspec.results import FinishReason

_log = logging.getLogger(__name__)
SAFE_BATCH_SECONDS = 60.0  # how long `safe_batch_size` limits the rows after larger batches failed


@dataclass(frozen=True)
class Chunk:
    """Part of a prompt that is read in this round; `last` if it reaches the prompt's end and so yields a token."""

    sequence: Sequence
    start: int
    count: int
    last: bool

    @property
    def scored(self) -> bool:
        """Whether log-probabilities of the prompt tokens that it predicts are requested and not computed yet."""
        wanted = self.sequence.request.sampling.prompt_logprobs is not None
        return wanted and len(self.sequence.prompt_logprobs) < self.sequence.prompt_length - 1


@dataclass(frozen=True)
class PromptProgress:
    """Progress of some requests: `read` of `total` prompt tokens of the running ones.

    `ahead`: requests in the queue before the first waiting one of them; 0 if none waits.
    """

    read: int
    total: int
    ahead: int


class Batch:
    """The sequences of one round: B decoding ones with their maximum draft depths (`limits` [B]), and prompt chunks.

    `emitting`: the E sequences that gain tokens, the decoding ones first. `rows` [E] are their rows in all caches.
    """

    def __init__(self, decoding: list[Sequence], limits: list[int], chunks: list[Chunk]) -> None:
        self.decoding = decoding
        self.limits = limits
        # Chunks that yield a token come first, in the order of `emitting`.
        self.chunks = sorted(chunks, key=lambda chunk: not chunk.last)
        # Sequences that gain tokens: decoding ones, then those whose prompt ends in this round.
        self.emitting = [*decoding, *(chunk.sequence for chunk in self.chunks if chunk.last)]
        self.rows = np.array([sequence.row for sequence in self.emitting], dtype=np.int64)
        self.prefill_tokens = sum(chunk.count for chunk in chunks)


class Scheduler:
    """First come, first served, at most `max_rows` at a time; prompts are read in parts (see `share_prefill`).

    A request waits while a running one reads a prefix that it can reuse; later requests may be admitted first.

    When the cache runs out of room the newest sequence gives way: it waits at the front of the queue until another
    leaves, and then reads the tokens that are not cached any more; its output does not change. Drafts never preempt
    running requests; idle rows are evicted for them.
    """

    def __init__(
        self,
        caches: Caches,
        max_rows: int,
        *,
        prefill_budget: Callable[[int, int], int],
        max_depth: int,
        on_start: Callable[[Sequence], None],
        on_leave: Callable[[int], None],
        clock: Callable[[], float],
    ) -> None:
        """`prefill_budget`: maximum prompt tokens of a round, by the number of its decoding rows and the sum of their
        context tokens. `clock` returns seconds.
        """
        self._caches = caches
        self.prefixes = PrefixCache(caches, max_rows)
        self._prefill_budget = prefill_budget
        self._max_depth = max_depth
        self._on_start = on_start
        self._on_leave = on_leave
        self._clock = clock
        self._short_of_room = False
        self._safe_batch_size, self._safe_batch_until = max_rows, 0.0
        self._bisection = FaultBisection()
        self._awaited: dict[int, Awaited] = {}  # by id() of the queued sequence that waits
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0  # sequences that gave way since the start
        self._admitting: Sequence | None = None  # set while a sequence is admitted: after an error it is the culprit

    @property
    def cache_used(self) -> float:
        """The share of the cache that running requests hold, 0 to 1; idle rows are not counted.

        Any thread may call it.
        """
        return self._caches.share_of([row for sequence in self.running.copy() if (row := sequence.row) is not None])

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting

    @property
    def _sources(self) -> list[Sequence]:
        """Running requests whose cached tokens may be copied. Where rounds overlap, a failed one has not left yet."""
        return [sequence for sequence in self.running if sequence.finish is not FinishReason.ERROR]

    @property
    def bisecting(self) -> bool:
        """Whether a bisection is in progress; the running requests may then change with every round."""
        return self._bisection.group is not None

    def prompt_progress(self, request_ids: Collection[str]) -> PromptProgress:
        """Progress of these requests. Any thread may call it; the numbers may be those before the current round."""
        read, total = 0, 0
        for sequence in self.running.copy():
            row = sequence.row
            if row is not None and sequence.request.id in request_ids:
                read += min(self._caches.length(row), sequence.prompt_length)
                total += sequence.prompt_length
        positions = (position for position, one in enumerate(self.waiting.copy()) if one.request.id in request_ids)
        return PromptProgress(read, total, next(positions, 0))

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def next_batch(self) -> Batch:
        """Admit requests and return the next batch. Decoding rows have room for their limits."""
        self._admit()
        decoding: list[Sequence] = []
        limits: list[int] = []
        reading: list[Sequence] = []
        for sequence in list(self.running):
            if sequence.row is None or sequence.finish is not None:
                continue  # it has just given way, or has ended and waits for its text
            # The first token always comes from a prompt chunk: drafting must not delay it.
            if not sequence.emitted or self._missing(sequence) > 1:
                reading.append(sequence)
            elif self._make_room(sequence):
                decoding.append(sequence)
                limits.append(self._draft_room(sequence))
        reading = [sequence for sequence in reading if sequence.row is not None]
        return Batch(decoding, limits, self._chunks(reading, decoding))

    def _chunks(self, reading: list[Sequence], decoding: list[Sequence]) -> list[Chunk]:
        """The prompt chunks of a round with these decoding rows."""
        if not reading:
            return []
        missing = [self._missing(sequence) for sequence in reading]
        urgent = [self._until_reusable(sequence, left) for sequence, left in zip(reading, missing, strict=True)]
        budget = self._prefill_budget(len(decoding), sum(sequence.length for sequence in decoding))
        return [
            Chunk(sequence, sequence.length - left, count, last=count == left)
            for sequence, left, count in zip(reading, missing, share_prefill(missing, budget, urgent), strict=True)
            if count
        ]

    def _until_reusable(self, sequence: Sequence, missing: int) -> int:
        """Tokens left to read until a request can continue: this one, or one that waits for its prefix."""
        cached = sequence.length - missing
        waiting = (awaited.length - cached for awaited in self._awaited.values() if awaited.reader is sequence)
        return min((missing, *(left for left in waiting if left > 0)))

    def _missing(self, sequence: Sequence) -> int:
        """The number of the sequence's tokens that are not cached."""
        return sequence.length - self._caches.length(held_row(sequence))

    def leave(self, sequence: Sequence, *, trusted: bool = True) -> None:
        """Remove a sequence from the queue or the batch and release its row; `trusted`: its cached tokens are valid."""
        if sequence.row is None:
            if sequence in self.waiting:
                self._dequeue(sequence)
                self._short_of_room &= not sequence.emitted  # it may be the one that gave way last
            return
        self.running.remove(sequence)
        self._short_of_room = False
        self._release_row(sequence, trusted=trusted)

    def clear(self, sequence: Sequence) -> None:
        """Remove a request that has left from the bisection."""
        self._bisection.clear(sequence)

    def failed(self) -> Sequence | None:
        """Handle a failed round: discard the cached tokens of its rows and queue its requests again. Returns the
        culprit, if it is known.

        The requests wait at the front of the queue and keep their tokens. If an admission failed, that request is the
        culprit, and the running ones keep their rows.
        """
        culprit, self._admitting = self._admitting, None
        if culprit is not None:
            return culprit  # the next round was not launched
        culprit = self._bisection.failed(self.running)
        self._requeue_all(trusted=False)
        return culprit

    def succeeded(self) -> None:
        """Handle a successful round; during a bisection, a completed group is replaced by the next one."""
        before = self._bisection.group
        if before is None:
            return
        if self._bisection.succeeded() and self._bisection.safe_batch_size is not None:
            self._safe_batch_size = self._bisection.safe_batch_size
            self._safe_batch_until = self._clock() + SAFE_BATCH_SECONDS
            _log.warning("no request fails by itself; at most %d run at once for a while", self._safe_batch_size)
        after = self._bisection.group
        if after is not before and after is not None:
            self._requeue_all(trusted=True)

    def _requeue_all(self, *, trusted: bool) -> None:
        """Queue all running sequences again, first and in their order; `trusted`: their cached tokens are valid."""
        for sequence in reversed(self.running):
            self._release_row(sequence, trusted=trusted)
            self.waiting.appendleft(sequence)
        self.running.clear()
        self._short_of_room = False

    def _next(self) -> Sequence | None:
        """The next request to admit, or None."""
        if not self.waiting or not self.prefixes.has_row or self._short_of_room:
            return None  # a preempted request waits until one leaves; it would be preempted again at once
        if len(self.running) >= self._safe_batch_size and self._clock() < self._safe_batch_until:
            return None
        group = self._bisection.group
        return next((one for one in self.waiting if (group is None or one in group) and not self._awaits(one)), None)

    def _awaits(self, sequence: Sequence) -> bool:
        """Whether a running request is reading a prefix that this one can reuse."""
        awaited = self._awaited.get(id(sequence))
        if awaited is not None and self.prefixes.is_pending(awaited):
            return True
        awaited = self.prefixes.find_reader(sequence, self._sources)
        if awaited is None:
            self._awaited.pop(id(sequence), None)
        else:
            self._awaited[id(sequence)] = awaited
        return awaited is not None

    def _dequeue(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        self._awaited.pop(id(sequence), None)

    def _admit(self) -> None:
        while (sequence := self._next()) is not None:
            self._admitting = sequence
            acquired = self.prefixes.acquire(sequence, self._sources)
            if acquired is None:
                self._admitting = None
                return
            self._dequeue(sequence)
            sequence.row = acquired.row
            if not sequence.admitted and sequence.prefix_scope is not None:
                sequence.cached_tokens = acquired.cached
                self.prefixes.stats.queried += sequence.length
                self.prefixes.stats.hits += acquired.cached
            self.running.append(sequence)
            self._on_start(sequence)
            self._admitting = None

    def _make_room(self, sequence: Sequence) -> bool:
        """Make room for one more token by preempting newer sequences; False if this one itself gave way."""
        while not self._caches.reserve(held_row(sequence), sequence.length):
            newest = self.running[-1]
            if len(self.running) == 1:
                raise EngineError(f"the cache is too small for {sequence.length} tokens; give more cache tokens")
            self.running.remove(newest)
            self._release_row(newest)
            self.waiting.appendleft(newest)
            self.preemptions += 1
            self._short_of_room = True
            if newest is sequence:
                return False
        return True

    def _draft_room(self, sequence: Sequence) -> int:
        """Maximum draft depth for which there is room without preemption."""
        depth = max(0, min(sequence.depth_limit, self._max_depth))
        while depth and not self._caches.reserve(held_row(sequence), sequence.length + depth):
            depth //= 2
        return depth

    def _release_row(self, sequence: Sequence, *, trusted: bool = True) -> None:
        row = held_row(sequence)
        sequence.row = None
        try:
            if trusted and sequence.finish is not FinishReason.ERROR:
                self.prefixes.retain(row, sequence)
            else:
                self.prefixes.drop(row)
        except Exception:  # noqa: BLE001 - it is freed when it is next assigned
            _log.exception("row %d could not be freed", row)
        self._on_leave(row)


def share_prefill(missing: SequenceOf[int], budget: int, urgent: SequenceOf[int]) -> list[int]:
    """Tokens of each prompt to read in a round of `budget` tokens; `missing` is ordered from the oldest request.

    The oldest request gets half of the budget, so that it takes at most twice as long as alone. The rest goes to the
    prompts with the fewest tokens left until a request can go on (`urgent`), so that a short prompt does not wait for a
    long one, then to those with the fewest tokens left. The oldest request comes last in both orders.
    """
    shares = [min(missing[0], -(-budget // 2)), *[0] * (len(missing) - 1)]
    left = budget - shares[0]
    for goal in (urgent, missing):
        for at in (*sorted(range(1, len(missing)), key=goal.__getitem__), 0):
            more = min(max(goal[at] - shares[at], 0), left)
            shares[at], left = shares[at] + more, left - more
    return shares


def held_row(sequence: Sequence) -> int:
    """The row of a sequence that runs."""
    if sequence.row is None:
        raise ValueError("the sequence holds no row")
    return sequence.row
