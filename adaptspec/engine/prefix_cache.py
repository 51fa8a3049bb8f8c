"""Prefix cache: prompt prefixes that another request has cached are not read again.

The rows of ended requests stay cached until their memory or the row is needed. The caches of draft models and heads
stay as well, so that a request that reuses a prefix can draft at once.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from adaptspec.common_prefix import common_prefix
from adaptspec.engine.row_caches import Caches
from adaptspec.errors import EngineError
from adaptspec.request import Request

_log = logging.getLogger(__name__)
Mode = Literal["off", "key", "shared"]
Scope = tuple[str | None, str | None]  # API key and salt: requests of one scope may reuse each other's cached tokens
# A row is taken over instead of copied if that discards at most this share of the reused tokens: copying a token takes
# less than a sixteenth of the time of reading it.
_LOST_SHARE = 1 / 16


class CachedSequence(Protocol):
    """The part of a `Sequence` that the prefix cache uses."""

    tokens: list[int]
    row: int | None
    prefix_scope: Scope | None


@dataclass
class PrefixStats:
    """Counts since the start: prompt tokens of requests that may reuse cached tokens (`queried`), those of them that
    were cached (`hits`), and evicted rows (`evictions`).
    """

    queried: int = 0
    hits: int = 0
    evictions: int = 0


class IdleRow(NamedTuple):
    """The cached tokens of an idle row, and the scope that may reuse them."""

    tokens: list[int]
    scope: Scope


class Acquired(NamedTuple):
    """The row of an admitted request, and the number of its tokens that are cached there."""

    row: int
    cached: int


class Awaited(NamedTuple):
    """A running request that is reading a prefix another request can reuse.

    The prefix is cached at `length` tokens.
    """

    reader: CachedSequence
    length: int


class PrefixCache:
    """Assigns rows to requests, and keeps the cached tokens of ended requests.

    A request takes over the idle row whose text it continues, or gets a copy of the longest common prefix of another
    row, running or idle. Idle rows are evicted, the least recently used first, when a request needs a row or memory is
    short.
    """

    def __init__(self, caches: Caches, rows: int) -> None:
        """All rows are freed first: the texts that they hold are unknown. `caches` evict idle rows from now on."""
        self._caches = caches
        caches.evict = self.evict
        self._empty = list(range(rows - 1, -1, -1))
        for row in self._empty:
            caches.free(row)
        self._idle: dict[int, IdleRow] = {}  # by row, the least recently used first
        self.stats = PrefixStats()

    @property
    def has_row(self) -> bool:
        """Whether a request can have a row, if there is memory for it."""
        return bool(self._empty or self._idle)

    def find_reader(self, sequence: CachedSequence, running: Collection[CachedSequence]) -> Awaited | None:
        """The running request that is reading more than half of what `sequence` would have to read, or None."""
        if sequence.prefix_scope is None:
            return None
        tokens = sequence.tokens
        _, cached = self._longest(sequence, running)
        for other in running:
            if other.prefix_scope == sequence.prefix_scope:
                soon = min(common_prefix(tokens, other.tokens), len(tokens) - 1)
                if 2 * (soon - cached) > len(tokens) - cached:
                    return Awaited(other, soon)
        return None

    def is_pending(self, awaited: Awaited) -> bool:
        """Whether the reader still runs and has not cached `length` tokens yet."""
        row = awaited.reader.row
        return row is not None and self._caches.length(row) < awaited.length

    def acquire(self, sequence: CachedSequence, running: Collection[CachedSequence]) -> Acquired | None:
        """Assign a row with room for the request's tokens and one more; None if memory is short.

        The last token is never reused: its logits are needed.
        """
        source, shared = self._longest(sequence, running)
        row = self._take_over(source, shared)
        if row is None:
            row = self._take_empty()
        try:
            cached = 0 if source is None else self._copy(source, row, shared)
            if source is not None and cached < shared and self._idle.keys() == {source}:
                # Memory is short, and `source` would be evicted next: its row is used instead of a copy.
                self.drop(row)
                del self._idle[source]
                row, cached = source, self._copy(source, source, shared)
            if self._caches.reserve(row, len(sequence.tokens) + 1):
                return Acquired(row, cached)
        except BaseException:
            self.drop(row)
            raise
        self.retain(row, sequence)
        return None

    def retain(self, row: int, sequence: CachedSequence) -> None:
        """Release the row of a request; its cached tokens stay for requests of its scope."""
        length = min(self._caches.length(row), len(sequence.tokens))
        if sequence.prefix_scope is None or not length:
            self.drop(row)
        else:
            self._idle[row] = IdleRow(sequence.tokens[:length], sequence.prefix_scope)

    def drop(self, row: int) -> None:
        """Release a row and discard its cached tokens."""
        self._empty.append(row)  # first: if the row cannot be freed now, it is freed when it is next assigned
        self._caches.free(row)

    def clear(self) -> None:
        """Evict all idle rows."""
        while self.evict():
            pass

    @contextmanager
    def spare_row(self) -> Iterator[int]:
        """An empty row with room for one token, for a pass between requests; idle rows are evicted for it.

        Raises:
            EngineError: all rows are in use, or memory is short.
        """
        if not self.has_row:
            raise EngineError("all rows are in use")
        row = self._take_empty()
        try:
            if not self._caches.reserve(row, 1):
                raise EngineError("the cache has no room for one token; give it more memory")
            yield row
        finally:
            self.drop(row)

    def evict(self) -> bool:
        """Evict the least recently used idle row; False if no row is idle."""
        if not self._idle:
            return False
        row = next(iter(self._idle))
        del self._idle[row]
        self.stats.evictions += 1
        self.drop(row)
        return True

    def _take_over(self, source: int | None, shared: int) -> int | None:
        """Take over the idle row `source` if few of its tokens are lost by that, or if no other row is left.

        None if `source` is not idle or another row is to be used; an idle `source` is then the most recently used.
        """
        if source is None or source not in self._idle:
            return None
        idle = self._idle.pop(source)
        if len(idle.tokens) - shared <= _LOST_SHARE * shared or not self.has_row:
            return source
        self._idle[source] = idle
        return None

    def _take_empty(self) -> int:
        """Take an empty row; if there is none, an idle row is evicted. `has_row` must be true."""
        if not self._empty:
            self.evict()
        row = self._empty.pop()
        try:
            if self._caches.length(row):
                self._caches.free(row)
        except BaseException:
            self._empty.append(row)
            raise
        return row

    def _copy(self, source: int, row: int, length: int) -> int:
        """Copy a prefix of `source` to `row` and return its length; 0 after an error."""
        idle = self._idle.pop(source, None)  # it must not be evicted for its own copy
        try:
            return self._caches.copy_prefix(source, row, length)
        except Exception:  # noqa: BLE001 - the prompt is read instead
            _log.exception("cached tokens could not be reused; the prompt is read")
            self._caches.free(row)
            return 0
        finally:
            if idle is not None:
                self._idle[source] = idle

    def _longest(self, sequence: CachedSequence, running: Collection[CachedSequence]) -> tuple[int | None, int]:
        """The row with the longest cached prefix of the request's text, and the length of that prefix; (None, 0) if no
        row has one.

        Among equal rows the one with the fewest tokens is returned, then an idle one, then the most recently used.
        """
        scope, source, best = sequence.prefix_scope, None, (0, 0)
        if scope is None:
            return None, 0
        held = [(other.row, other.tokens) for other in running if other.row is not None and other.prefix_scope == scope]
        held += [(row, idle.tokens) for row, idle in self._idle.items() if idle.scope == scope]
        for row, tokens in held:
            length = self._caches.length(row)
            common = min(common_prefix(sequence.tokens, tokens), length, len(sequence.tokens) - 1)
            if common and (common, -length) >= best:
                source, best = row, (common, -length)
        return source, best[0]


def scope_of(request: Request, mode: Mode) -> Scope | None:
    """The scope in which a request reuses cached tokens and leaves its tokens cached; None if it does neither.

    Requests for prompt log-probabilities have no scope: all their logits are computed.
    """
    if mode == "off" or not request.prefix_cache or request.sampling.prompt_logprobs is not None:
        return None
    return request.key if mode == "key" else None, request.cache_salt
