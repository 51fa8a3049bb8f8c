"""Reuse of what other requests have cached: the beginning of a prompt that another text shares is not read again.

Rows of requests that have ended keep their tokens until memory or the row is needed. So do the caches of draft models
and heads: speculation costs no cache hit, and a hit costs no drafts.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from adaptspec.errors import EngineError
from adaptspec.request import Request

_log = logging.getLogger(__name__)
Mode = Literal["off", "key", "shared"]
Scope = tuple[str | None, str | None]  # API key and salt: requests of one scope may reuse what each other has cached
# A row is taken over, and not copied, where that loses at most this share of what is reused: copying a token takes less
# than a sixteenth of the time of reading it.
_LOST_SHARE = 1 / 16
_COMPARED = 256  # tokens at a time


class Caches(Protocol):
    """What the prefix cache needs of `RowCaches`."""

    def reserve(self, row: int, length: int) -> bool:
        """See `RowCaches.reserve`."""

    def length(self, row: int) -> int:
        """See `RowCaches.length`."""

    def copy_prefix(self, source: int, target: int, length: int) -> int:
        """See `RowCaches.copy_prefix`."""

    def free(self, row: int) -> None:
        """See `RowCaches.free`."""


class Reader(Protocol):
    """A request, as far as the prefix cache knows it: see `Sequence`."""

    tokens: list[int]
    row: int | None
    prefix_scope: Scope | None


@dataclass
class PrefixStats:
    """Since the start: prompt tokens of requests that may reuse what others have cached (`queried`), those of them that
    were cached (`hits`), and rows that gave way (`evictions`).
    """

    queried: int = 0
    hits: int = 0
    evictions: int = 0


class IdleRow(NamedTuple):
    """What a row that nobody uses holds, and who may reuse it."""

    row: int
    tokens: list[int]
    scope: Scope


class Acquired(NamedTuple):
    """A row for a request, and how many of its tokens are cached there."""

    row: int
    cached: int


class Awaited(NamedTuple):
    """A running request that is reading what another needs, until it has read `length` tokens."""

    reader: Reader
    length: int


class PrefixCache:
    """Hands rows to requests and takes them back, with what they have cached.

    A request gets the row whose text it continues, or a copy of what it shares with another row, running or not. Rows
    that nobody uses give way, the least recently used first, to requests without a row and wherever memory is short.
    """

    def __init__(self, caches: Caches, rows: int) -> None:
        """Rows are emptied first: what they hold is of unknown texts."""
        self._caches = caches
        self._empty = list(range(rows - 1, -1, -1))
        for row in self._empty:
            caches.free(row)
        self._idle: dict[int, IdleRow] = {}  # the least recently used first
        self.stats = PrefixStats()

    @property
    def has_row(self) -> bool:
        """Whether a request can have a row, if there is memory for it."""
        return bool(self._empty or self._idle)

    def awaited(self, reader: Reader, running: Collection[Reader]) -> Awaited | None:
        """Whoever is just reading most of what this request would have to read: it had better wait for that."""
        if reader.prefix_scope is None:
            return None
        tokens = reader.tokens
        _, cached = self._longest(reader, running)
        for other in running:
            if other.prefix_scope == reader.prefix_scope:
                soon = _common(tokens, other.tokens, len(tokens) - 1)
                if 2 * (soon - cached) > len(tokens) - cached:
                    return Awaited(other, soon)
        return None

    def still(self, awaited: Awaited) -> bool:
        """Whether it has not been read yet, and will be."""
        row = awaited.reader.row
        return row is not None and self._caches.length(row) < awaited.length

    def acquire(self, reader: Reader, running: Collection[Reader]) -> Acquired | None:
        """A row with room for the request's tokens and one more; None: memory is short.

        The last token is always read: the request needs what the target says after it.
        """
        source, shared = self._longest(reader, running)
        row = self._take_over(source, shared)
        if row is None:
            row = self._take_empty()
        try:
            cached = 0 if source is None else self._copied(source, row, shared)
            if self._caches.reserve(row, len(reader.tokens) + 1):
                return Acquired(row, cached)
        except BaseException:
            self.drop(row)
            raise
        self.retain(row, reader)
        return None

    def retain(self, row: int, reader: Reader) -> None:
        """A request leaves its row: what is cached there of its text stays, if anybody may reuse it."""
        length = min(self._caches.length(row), len(reader.tokens))
        if reader.prefix_scope is None or not length:
            self.drop(row)
        else:
            self._idle[row] = IdleRow(row, reader.tokens[:length], reader.prefix_scope)

    def drop(self, row: int) -> None:
        """A request leaves its row, and what is cached there is not to be trusted."""
        self._empty.append(row)  # first: a row whose memory cannot be freed now is freed when it is next taken
        self._caches.free(row)

    def clear(self) -> None:
        """Give up all rows that nobody uses."""
        while self.evict():
            pass

    @contextmanager
    def spare_row(self) -> Iterator[int]:
        """A row with room for one token, for a pass between requests; others give way to it if need be.

        Raises:
            EngineError: there is none.
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
        """Give up the row that nobody has used for longest; False if all rows are in use or empty."""
        if not self._idle:
            return False
        row = next(iter(self._idle))
        del self._idle[row]
        self.stats.evictions += 1
        self.drop(row)
        return True

    def _take_over(self, source: int | None, shared: int) -> int | None:
        """An idle row whose first tokens a request shares, for the request itself: little is lost, or there is no other
        row. None: another row is to be taken, and the idle one is the most recently used now.
        """
        idle = None if source is None else self._idle.pop(source, None)
        if idle is None:
            return None
        if len(idle.tokens) - shared <= _LOST_SHARE * shared or not self.has_row:
            return idle.row
        self._idle[idle.row] = idle
        return None

    def _take_empty(self) -> int:
        """A row that holds nothing, evicting one if need be; there must be a row to evict then."""
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

    def _copied(self, source: int, row: int, length: int) -> int:
        """How many tokens of `source` the row holds now. An error costs the reuse, and no request its answer."""
        try:
            return self._caches.copy_prefix(source, row, length)
        except Exception:  # noqa: BLE001 - the prompt is read instead
            _log.exception("cached tokens could not be reused; the prompt is read")
            self._caches.free(row)
            return 0

    def _longest(self, reader: Reader, running: Collection[Reader]) -> tuple[int | None, int]:
        """The row that has cached most of the beginning of the request's text, and how much; None: no row has any.

        Of equal ones it is the one that holds least beyond it, then an idle one, then the most recently used.
        """
        scope, source, best = reader.prefix_scope, None, (0, 0)
        if scope is None:
            return None, 0
        held = [(one.row, one.tokens) for one in running if one.row is not None and one.prefix_scope == scope]
        held += [(one.row, one.tokens) for one in self._idle.values() if one.scope == scope]
        for row, tokens in held:
            length = self._caches.length(row)
            common = _common(reader.tokens, tokens, min(length, len(reader.tokens) - 1))
            if common and (common, -length) >= best:
                source, best = row, (common, -length)
        return source, best[0]


def scope_of(request: Request, mode: Mode) -> Scope | None:
    """Whose cached tokens a request may reuse, and who may reuse its own; None: nobody.

    What the target says after a prompt's tokens is not cached, so a request that asks for it reads all of them.
    """
    if mode == "off" or not request.prefix_cache or request.sampling.prompt_logprobs is not None:
        return None
    return request.key if mode == "key" else None, request.cache_salt


def _common(one: Sequence[int], other: Sequence[int], most: int) -> int:
    """How many tokens two texts have in common from the start on, of the first `most`."""
    most = min(most, len(one), len(other))
    for start in range(0, most, _COMPARED):
        end = min(start + _COMPARED, most)
        if one[start:end] != other[start:end]:
            return next(i for i in range(start, end) if one[i] != other[i])
    return max(most, 0)
