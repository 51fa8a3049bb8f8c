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
    """One row. Places count its tokens; `states` are the target's from place `first` on, with their tokens.

    They are kept in `parts`, as they came: a row that rests takes no more than a copy of each.
    """

    parts: list[torch.Tensor] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    first: int = 0
    length: int = 0  # tokens that were read
    sure: int = 0  # those of them that will stay
    own: dict[int, Any] = field(default_factory=dict)  # what is remembered of drafted tokens, by their place

    @property
    def end(self) -> int:
        """How far the target has told its states."""
        return self.first + len(self.tokens)

    @property
    def states(self) -> torch.Tensor:
        if len(self.parts) != 1:
            self.parts = [torch.cat(self.parts)]
        return self.parts[0]

    def forget(self, place: int) -> None:
        """States before `place`."""
        count = place - self.first
        if count <= 0:
            return
        del self.tokens[:count]
        self.first = place
        while self.parts and count >= len(self.parts[0]):
            count -= len(self.parts.pop(0))
        if self.parts and count:
            self.parts[0] = self.parts[0][count:].clone()  # not a view, which would keep all of it

    def keep(self, base: int, places: Sequence[int]) -> None:
        """Of the states from `base` on those at base + places, ascending."""
        before = base - self.first
        count = before + len(places)
        if places and places[-1] >= len(places):
            chosen = [*range(before), *(before + place for place in places)]
            self.tokens, self.parts = [self.tokens[i] for i in chosen], [picked(self.states, chosen)]
            return
        surplus = len(self.tokens) - count
        if surplus > 0:
            del self.tokens[count:]
            while self.parts and surplus >= len(self.parts[-1]):
                surplus -= len(self.parts.pop())
            if surplus:
                self.parts[-1] = self.parts[-1][:-surplus].clone()  # as in `forget`


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
        """Tokens of all rows whose states wait to be read. Any thread may ask."""
        return sum(len(text.tokens) for text in list(self._rows.values()))

    @property
    def unread_bytes(self) -> int:
        """What their states take. Any thread may ask."""
        return sum(part.nbytes for text in list(self._rows.values()) for part in list(text.parts))

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
        tokens, at = packed.tokens.tolist(), 0
        for row, start, count in zip(packed.rows.tolist(), starts, packed.counts.tolist(), strict=True):
            new = slice(at, at := at + count)
            text = self._rows.get(row)
            if text is not None and start - text.sure > MOST_UNREAD:
                self._read_on(row)
                text = self._rows.get(row)
            if not start:
                self.free(row)
                text = self._rows[row] = Text()
            elif text is None:
                self._lost.add(row)
                continue
            text.keep(start, ())
            text.forget(text.sure - self.shift)  # what comes before is read
            text.tokens += tokens[new]
            text.parts.append(states[new].clone())
            text.first = start + count - len(text.tokens)

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
        text.keep(base, places)
        if not text.own and text.length <= text.sure <= base + len(places) + self.shift:
            return  # it has not drafted, and nothing that it has read goes
        text.own.clear()
        self.truncate(row, min(text.sure, base + len(places) + self.shift))

    @torch.inference_mode()
    def forward(self, packed: Packed) -> torch.Tensor:
        """See `Runner.forward`."""
        parts = np.split(packed.tokens, np.cumsum(packed.counts[:-1]))
        rows = zip(packed.rows.tolist(), parts, packed.seen or [None] * len(parts), packed.wanted.tolist(), strict=True)
        fed = []
        for row, new, seen, wanted in rows:
            text = self._rows.setdefault(row, Text())
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


def _before(start: int, count: int, seen: BoolArray | None) -> list[int]:
    """Places of the tokens that come right before the new ones."""
    if seen is None:
        return list(range(start - 1, start + count - 1))
    first = start + count - seen.shape[1]  # of the tokens that `seen` tells of
    paths = [line.nonzero()[0] for line in seen]
    return [int(first + path[-2]) if len(path) > 1 else first - 1 for path in paths]
