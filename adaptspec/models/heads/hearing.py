"""What all heads share: the target's states of each row, as long as they wait to be read, and rows as of any runner.

To its drafter a head is a model like any other. What it reads with the target's states stays; what it reads beyond
them, its own drafts, is forgotten as soon as the target has read on, and then read again with the target's states.

A head runs for nobody who does not ask for drafts. What waits is bounded: of a row that rests longer the oldest go, and
with them what was read before, as if its text began later. Positions are relative in all heads, so that they see less
of the text then, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from adaptspec.models.kv_cache import KVCache
from adaptspec.models.runner import ModelInfo, Packed
from adaptspec.progress import report_progress
from adaptspec.types import BoolArray, IntArray

# States of the target that a row may keep unread, in tokens, beside those of one pass. Of more the last 3/4 stay.
MOST_UNREAD = 256
# A pass of so many tokens a row leaves its states to its rows as they are. Of larger ones each copies its own: what was
# drafted and rejected, and the prompts of others, would stay with them.
SHARED = 2
ABSENT = -1e30  # the score of tokens that a head does not have: never drawn, and its share times it is 0, not NaN


@dataclass
class Text:
    """One row. Places count its tokens from `begin` on; `states` are the target's from place `first` on, with theirs.

    They are kept in `parts`, as they came: a row that rests takes next to no time.
    """

    begin: int = 0  # what the head knows of the row's text begins there
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
    listens = True

    def __init__(self, info: ModelInfo, layers: Sequence[int], vocabulary: torch.Tensor | None, cache: KVCache) -> None:
        """`layers` as in `Listener`; `vocabulary` [n]: which of the target's tokens its own are, None for all."""
        self.info, self.layers = info, layers
        self._vocabulary, self._cache = vocabulary, cache
        self.device = cache.pool[0].device
        self._rows: dict[int, Text] = {}
        self._untold: set[int] = set()  # rows that the target has read on, of which nothing is known here

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
        if row in self._untold:
            return False
        return self._cache.reserve(row, max(1, length - self.begin(row) - self.shift))

    def begin(self, row: int) -> int:
        """Where what it knows of a row's text begins."""
        return self._rows[row].begin if row in self._rows else 0

    def length(self, row: int) -> int:
        return self._rows[row].begin + self._rows[row].length if row in self._rows else 0

    def truncate(self, row: int, length: int) -> None:
        if row in self._rows:
            self._cut(row, self._rows[row], length - self._rows[row].begin)

    def _cut(self, row: int, text: Text, length: int) -> None:
        """Forget what was read from a place of the text on."""
        text.length, text.sure = min(text.length, length), min(text.sure, length)
        text.own = {place: kept for place, kept in text.own.items() if place < length}
        self._cache.truncate(row, max(0, length - self.shift))

    def keep(self, row: int, base: int, places: Sequence[int]) -> None:  # noqa: ARG002 - as `Runner` has it
        """Forgets them all: what the target accepted is read again, with its states."""
        self.truncate(row, base)

    def free(self, row: int) -> None:
        self._uncache(row)
        self._rows.pop(row, None)

    def _uncache(self, row: int) -> None:
        """Forget all that was read."""
        self._cache.free(row)

    def freed(self, row: int) -> None:
        """See `Listener`."""
        self.free(row)
        self._untold.discard(row)

    def heard(self, packed: Packed, starts: Sequence[int], states: torch.Tensor) -> None:
        """See `Listener`."""
        if not self.listens:
            for row in packed.rows.tolist():
                self._lose(row)
            return
        rows, counts, tokens, end = packed.rows.tolist(), packed.counts.tolist(), packed.tokens.tolist(), 0
        parts = torch.split(states, counts) if len(rows) > 1 else (states,)
        shared = len(states) <= SHARED * len(rows)
        for row, start, count, part in zip(rows, starts, counts, parts, strict=True):
            end, new = end + count, min(count, MOST_UNREAD)  # of a long part of a prompt the end will do
            text = self._rows.get(row)
            surplus = -1 if text is None or start <= text.begin else text.begin + text.end - start
            if text is None or new < count or surplus < 0:
                text = self._anew(row, start + count - new)
            else:
                if surplus:
                    text.keep(start - text.begin, ())
                text.forget(text.sure - self.shift)  # what comes before is read
                if len(text.tokens) > MOST_UNREAD:
                    self._begin_later(row, text)
            text.tokens += tokens[end - new : end]
            text.parts.append(part if shared and new == count else part[-new:].clone())
            text.first = start + count - text.begin - len(text.tokens)

    def _lose(self, row: int) -> None:
        self.free(row)
        self._untold.add(row)

    def _anew(self, row: int, begin: int) -> Text:
        self.freed(row)
        text = self._rows[row] = Text(begin)
        return text

    def _begin_later(self, row: int, text: Text) -> None:
        """Have a text begin with the last of what waits."""
        text.forget(text.end - MOST_UNREAD * 3 // 4)
        self._uncache(row)
        text.begin, text.first, text.length, text.sure = text.begin + text.first, 0, 0, 0
        text.own.clear()

    def truncated(self, row: int, length: int) -> None:
        """See `Listener`."""
        if row in self._rows:
            self.kept(row, min(length, self._rows[row].begin + self._rows[row].end), ())

    def kept(self, row: int, base: int, places: Sequence[int]) -> None:
        """See `Listener`."""
        if row not in self._rows:
            return
        text = self._rows[row]
        base -= text.begin
        end = base + len(places)
        if base < text.first or not end:  # nothing is left that could be drafted from
            self._lose(row)
            return
        text.keep(base, places)
        if not text.own and text.length <= text.sure <= end + self.shift:
            return  # it has not drafted, and nothing that it has read goes
        text.own.clear()
        self._cut(row, text, min(text.sure, end + self.shift))

    @torch.inference_mode()
    def forward(self, packed: Packed) -> torch.Tensor:
        """See `Runner.forward`."""
        report_progress()
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
