"""What all heads share: the target's states of each row, as long as they wait to be read, and rows as of any runner.

To its drafter a head is a model like any other. What it reads with the target's states stays; what it reads beyond
them, its own drafts, is forgotten as soon as the target has read on, and then read again with the target's states.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from adaptspec.models.attention import Span
from adaptspec.models.kv_cache import KVCache
from adaptspec.models.runner import ModelInfo, Packed
from adaptspec.types import BoolArray, IntArray

# States of the target that a row may keep unread, in tokens, beside those of one pass. Then they are read, so many in a
# pass: a row that does not draft costs the keys and values of few layers per token.
MOST_UNREAD = 256
_log = logging.getLogger(__name__)
ABSENT = -1e30  # the score of tokens that a head does not have: never drawn, and its share times it is 0, not NaN


@dataclass
class Text:
    """One row. Places count its tokens; `states` are the target's from place `first` on, with their tokens."""

    states: torch.Tensor
    tokens: list[int] = field(default_factory=list)
    first: int = 0
    length: int = 0  # tokens that were read
    sure: int = 0  # those of them that will stay
    own: dict[int, Any] = field(default_factory=dict)  # what is remembered of drafted tokens, by their place

    @property
    def end(self) -> int:
        """How far the target has told its states."""
        return self.first + len(self.tokens)


@dataclass(frozen=True)
class Fed:
    """New tokens of a row, from place `start` on. `before` are the places of those that come right before each."""

    row: int
    text: Text
    start: int
    tokens: IntArray
    before: Sequence[int]
    seen: BoolArray | None
    wanted: int

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class HeadRunner:
    """Satisfies `Runner`, and listens to the target's. Of its cache a text takes `shift` places less than tokens."""

    shift = 0

    def __init__(self, info: ModelInfo, layers: Sequence[int], vocabulary: torch.Tensor | None, cache: KVCache) -> None:
        """`layers` as in `Listener`; `vocabulary` [n]: which of the target's tokens its own are, None for all."""
        self.info, self.layers = info, layers
        self._vocabulary, self._cache = vocabulary, cache
        self.device = cache.pool[0].device
        self._rows: dict[int, Text] = {}
        self._lost: set[int] = set()  # rows whose states are gone, and are not told again: they go without drafts

    @property
    def free_memory(self) -> float:
        return self._cache.free_share

    @property
    def unread(self) -> int:
        """Tokens of all rows whose states wait to be read."""
        return sum(len(text.tokens) for text in self._rows.values())

    def reserve(self, row: int, length: int) -> bool:
        return row not in self._lost and self._cache.reserve(row, max(1, length - self.shift))

    def length(self, row: int) -> int:
        return self._rows[row].length if row in self._rows else 0

    def truncate(self, row: int, length: int) -> None:
        if row in self._rows:
            text = self._rows[row]
            text.length, text.sure = min(text.length, length), min(text.sure, length)
            text.own = {place: kept for place, kept in text.own.items() if place < length}
        self._cache.truncate(row, max(0, length - self.shift))

    def keep(self, row: int, base: int, places: Sequence[int]) -> None:  # noqa: ARG002 - as `Runner` has it
        """Forgets them all: what the target accepted is read again, with its states."""
        self.truncate(row, base)

    def free(self, row: int) -> None:
        self._cache.free(row)
        self._rows.pop(row, None)
        self._lost.discard(row)

    freed = free

    def heard(self, packed: Packed, starts: Sequence[int], states: torch.Tensor) -> None:
        """See `Listener`."""
        rows = packed.rows.tolist()
        for row, start in zip(rows, starts, strict=True):
            if row in self._rows and start - self._rows[row].sure > MOST_UNREAD:
                self._read_on(row)
        tokens = np.split(packed.tokens, at := np.cumsum(packed.counts[:-1]))
        parts = torch.tensor_split(states, at.tolist())
        for row, start, new, more in zip(rows, starts, tokens, parts, strict=True):
            if not start:
                self.free(row)
            elif row not in self._rows:
                self._lost.add(row)
                continue
            text = self._text(row, states)
            known = slice(self._needed(text) - text.first, start - text.first)
            text.tokens, text.states = text.tokens[known] + new.tolist(), torch.cat((text.states[known], more))
            text.first = start + len(new) - len(text.tokens)

    def truncated(self, row: int, length: int) -> None:
        """See `Listener`."""
        if row in self._rows:
            self.kept(row, min(length, self._rows[row].end), ())

    def kept(self, row: int, base: int, places: Sequence[int]) -> None:
        """See `Listener`."""
        if row not in self._rows:
            return
        text = self._rows[row]
        if base < text.first:
            self.free(row)
            return
        at = [*range(base - text.first), *(base - text.first + place for place in places)]
        text.tokens, text.states = [text.tokens[i] for i in at], picked(text.states, at)
        text.own.clear()
        self.truncate(row, min(text.sure, base + len(places) + self.shift))

    @torch.inference_mode()
    def forward(self, packed: Packed) -> torch.Tensor:
        """See `Runner.forward`."""
        parts = np.split(packed.tokens, np.cumsum(packed.counts[:-1]))
        rows = zip(packed.rows.tolist(), parts, packed.seen or [None] * len(parts), packed.wanted.tolist(), strict=True)
        fed = []
        for row, new, seen, wanted in rows:
            text = self._text(row)
            fed.append(Fed(row, text, text.length, new, _before(text.length, len(new), seen), seen, wanted))
            text.length += len(new)
        logits = self._run(fed)
        if self._vocabulary is None:
            return logits
        whole = logits.new_full((len(logits), self.info.vocab_size), ABSENT)
        return whole.index_copy_(1, self._vocabulary, logits)

    def _run(self, fed: Sequence[Fed]) -> torch.Tensor:
        """Logits [wanted, its own vocabulary] after the last `wanted` of the new tokens of each row."""
        raise NotImplementedError

    def _needed(self, text: Text) -> int:
        """The first place whose state is still to be read."""
        return max(0, text.sure - self.shift)

    def _text(self, row: int, like: torch.Tensor | None = None) -> Text:
        if row not in self._rows:
            self._rows[row] = Text(torch.empty(0, 0, device=self.device) if like is None else like[:0])
        return self._rows[row]

    def _read_on(self, row: int) -> None:
        """Read all that the target has said of a row. What fails here costs its drafts, never the target's pass."""
        text = self._rows[row]
        tokens, one = text.tokens[text.length - text.first :], np.array([row], dtype=np.int64)
        try:
            if self.reserve(row, text.end):
                for first in range(0, len(tokens), MOST_UNREAD):
                    part = np.array(tokens[first : first + MOST_UNREAD], dtype=np.int64)
                    self.forward(Packed(one, np.array([len(part)]), part, np.zeros_like(one)))
                return
        except Exception:  # noqa: BLE001
            _log.exception("%s could not read on: the request in row %d goes without its drafts", self.info.name, row)
        self.free(row)


def picked(states: torch.Tensor, at: Sequence[int]) -> torch.Tensor:
    """The states at these places; those side by side are not copied, for which a device would wait for the host."""
    first, count = (at[0] if at else 0), len(at)
    if at == [*range(first, first + count)]:
        return states[first : first + count]
    return states.index_select(0, torch.tensor(at, device=states.device))


def span_of(fed: Fed, start: int, shift: int) -> Span:
    """Where in the cache tokens from place `start` on go."""
    return Span(fed.row, start - shift, fed.end - shift, fed.seen)


def _before(start: int, count: int, seen: BoolArray | None) -> list[int]:
    """Places of the tokens that come right before the new ones."""
    if seen is None:
        return list(range(start - 1, start + count - 1))
    first = start + count - seen.shape[1]  # of the tokens that `seen` tells of
    paths = [line.nonzero()[0] for line in seen]
    return [int(first + path[-2]) if len(path) > 1 else first - 1 for path in paths]
