"""What all heads share: buffered hidden states of the target, rows, and the vocabulary of the target.

To its drafter a head is a model like any other. The target's hidden states of committed tokens are passed to it, and
buffered until it next drafts. A token that is read with them stays; a token beyond them is the head's own draft, which
is discarded when further states come.

An idle head is not executed. If more than `MAX_BUFFERED` states of a row wait, the oldest are dropped and its text
begins later for the head. Positions are relative in all heads, so the head then sees less context, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from adaptspec.arrays import BoolArray, IntArray
from adaptspec.models.async_runner import to_device
from adaptspec.models.kv_cache import KVCache
from adaptspec.models.layers import Linear, RmsNorm
from adaptspec.models.runner import Forward, ModelInfo, Packed
from adaptspec.progress import report_progress

MAX_BUFFERED = 256  # hidden states of a row that wait to be read, in tokens; of more the last 3/4 stay
ABSENT = -1e30  # score of tokens that a head does not have: finite, since 0 times -inf in an entropy is NaN


@dataclass
class HeadRow:
    """One row. Positions count from `begin`, the position in the text of the first token that the head knows."""

    begin: int = 0
    first: int = 0  # position of the first buffered state
    parts: list[torch.Tensor] = field(default_factory=list)  # buffered states, as they came
    length: int = 0  # tokens that were read
    confirmed: int = 0  # of them, tokens that were read with states of the target
    drafted: dict[int, Any] = field(default_factory=dict)  # by position of a token: what drafting continues from

    @property
    def buffered(self) -> int:
        return sum(map(len, self.parts))

    @property
    def end(self) -> int:
        """The position behind the last state of the target."""
        return self.first + self.buffered

    @property
    def states(self) -> torch.Tensor:
        """All buffered states [buffered, width]."""
        if len(self.parts) != 1:
            self.parts = [torch.cat(self.parts)]
        return self.parts[0]

    def drop_before(self, position: int) -> None:
        """Drop buffered states before `position`."""
        surplus = max(0, position - self.first)
        self.first += surplus
        while self.parts and surplus >= len(self.parts[0]):
            surplus -= len(self.parts.pop(0))
        if self.parts and surplus:
            self.parts[0] = self.parts[0][surplus:].clone()  # a view would keep the memory of all of them

    def drop_from(self, position: int) -> None:
        """Drop buffered states from `position` on."""
        while self.parts and self.end > position:
            last = self.parts.pop()
            kept = len(last) - (self.end + len(last) - position)
            if kept > 0:
                self.parts.append(last[:kept].clone())


@dataclass(frozen=True)
class RowInput:
    """New tokens of one row, from position `start` on; `before` [n] are the positions of their predecessors."""

    row: int
    state: HeadRow
    start: int
    tokens: IntArray
    before: Sequence[int]
    seen: BoolArray | None
    wanted: int

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True)
class Fusion:
    """Combines F captured states of a token into one: norms and a product, each if there is one."""

    norm: Callable[[torch.Tensor], torch.Tensor] | None  # over all F together
    norms: Sequence[RmsNorm]  # or one for each
    matrix: Linear | None

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """[N, hidden] of states [N, F * target]."""
        if self.norm is not None:
            states = self.norm(states)
        if self.norms:
            parts = states.chunk(len(self.norms), 1)
            states = torch.cat([norm(part) for norm, part in zip(self.norms, parts, strict=True)], 1)
        return states if self.matrix is None else self.matrix(states)


@dataclass(frozen=True)
class HeadSpec:
    """What a head takes and gives.

    `capture`: the target's layers whose input it reads, ascending; the number of layers stands for the input of the
    final norm. `width`: values of these states per token. `vocabulary` int64 [n]: tokens of the target that it drafts,
    None for all. `dtype`: what its states are computed in.
    """

    capture: tuple[int, ...]
    width: int
    vocabulary: torch.Tensor | None
    dtype: torch.dtype


class HeadRunner:
    """Drafts from hidden states of the target; satisfies `Runner`.

    Its cache holds `shift` tokens less of a row than were read.
    """

    shift = 0

    def __init__(self, info: ModelInfo, spec: HeadSpec, cache: KVCache) -> None:
        self.info, self.spec = info, spec
        self.device = cache.pool[0].device
        self.drawn = torch.zeros(1, dtype=torch.int64, device=self.device)  # see `AsyncRunner`
        self._cache = cache
        self._rows: dict[int, HeadRow] = {}
        self._without_states: set[int] = set()  # rows whose states were not passed: they draft when some are again

    @property
    def free_memory(self) -> float:
        return self._cache.free_share

    def share_of(self, rows: Collection[int]) -> float:
        return self._cache.share_of(rows)

    def reserve(self, row: int, length: int) -> bool:
        if row in self._without_states:
            return False
        begin = self._rows[row].begin if row in self._rows else 0
        return self._cache.reserve(row, max(1, length - begin - self.shift))

    def length(self, row: int) -> int:
        return self._rows[row].begin + self._rows[row].length if row in self._rows else 0

    def truncate(self, row: int, length: int) -> None:
        if row in self._rows:
            self._cut(row, length - self._rows[row].begin)

    def keep(self, row: int, base: int, places: Sequence[int]) -> None:  # noqa: ARG002 - as `Runner` has it
        """Keeps none of them: accepted tokens are read again, with states of the target."""
        self.truncate(row, base)

    def copy_prefix(self, source: int, target: int, length: int) -> int:
        """See `Runner.copy_prefix`. Buffered states of these tokens are kept, too."""
        if source != target:
            self.free(target)
        known = self._rows.get(source)
        # The next token is read with the state before it. States that were already read are no longer buffered.
        if known is None or length <= known.begin or min(length - known.begin, known.end) - self.shift < known.first:
            self.free(target)
            return 0
        kept = min(length - known.begin, known.end)
        read = min(kept, known.confirmed)
        if self._cache.copy_prefix(source, target, max(0, read - self.shift)) < read - self.shift:
            self.free(target)
            return 0
        if source != target:
            self._rows[target] = HeadRow(known.begin, known.first, [*known.parts], read, read)
        self._rows[target].drop_from(kept)
        self._cut(target, read)
        return self.length(target)

    def free(self, row: int) -> None:
        self._cache.free(row)
        self._rows.pop(row, None)
        self._without_states.discard(row)

    def forget(self, row: int) -> None:
        """The target reads on in `row` and its states are not passed: it drafts nothing until some are."""
        self.free(row)
        self._without_states.add(row)

    def on_hidden_states(
        self, rows: Sequence[int], starts: Sequence[int], counts: Sequence[int], states: torch.Tensor
    ) -> None:
        """Take the target's states [sum(counts), width] of committed tokens of rows [B], from positions `starts` on."""
        for row, start, part in zip(rows, starts, torch.split(states, list(counts)), strict=True):
            kept = part[-MAX_BUFFERED:]
            known = self._rows.get(row)
            if known is None or start != known.begin + known.end or len(kept) < len(part):
                self.free(row)
                known = self._rows[row] = HeadRow(start + len(part) - len(kept))
            if known.length > known.confirmed:
                self._cut(row, known.confirmed)
            known.drafted.clear()  # what follows is drafted anew, from these states
            known.drop_before(known.confirmed - self.shift)
            # A copy: a view would keep the states of rejected drafts, and of the prompts of other rows.
            known.parts.append(kept.to(self.spec.dtype, copy=True))
            if known.buffered > MAX_BUFFERED:
                known.drop_before(known.end - MAX_BUFFERED * 3 // 4)
                self._cache.free(row)
                self._rows[row] = HeadRow(known.begin + known.first, parts=known.parts)

    @torch.inference_mode()
    def forward(self, packed: Packed) -> Forward:
        """See `Runner.forward`. Logits are of the target's vocabulary."""
        report_progress()
        self._cache.flush()
        parts = np.split(packed.tokens, np.cumsum(packed.counts[:-1]))
        rows = zip(packed.rows.tolist(), parts, packed.seen or [None] * len(parts), packed.wanted.tolist(), strict=True)
        inputs = []
        for row, tokens, seen, wanted in rows:
            state = self._rows.setdefault(row, HeadRow())
            start, state.length = state.length, state.length + len(tokens)
            inputs.append(RowInput(row, state, start, tokens, _before(start, len(tokens), seen), seen, wanted))
        logits, vocabulary = self._run(inputs), self.spec.vocabulary
        if vocabulary is None:
            return Forward(logits)
        whole = logits.new_full((len(logits), self.info.vocab_size), ABSENT)
        return Forward(whole.index_copy_(1, vocabulary, logits))

    def _run(self, inputs: Sequence[RowInput]) -> torch.Tensor:
        """Logits [wanted, its own vocabulary] after the last `wanted` of the new tokens of each row."""
        raise NotImplementedError

    def _cut(self, row: int, length: int) -> None:
        """Forget tokens from this position on."""
        state = self._rows[row]
        state.length, state.confirmed = min(state.length, length), min(state.confirmed, length)
        state.drafted = {position: kept for position, kept in state.drafted.items() if position < length}
        self._cache.truncate(row, max(0, length - self.shift))

    def _target_states(self, state: HeadRow, positions: Sequence[int]) -> torch.Tensor:
        """The target's states [n, width] of consecutive or other positions; zeros for rows that no text has."""
        if not state.end:
            return torch.zeros(len(positions), self.spec.width, dtype=self.spec.dtype, device=self.device)
        first, count = positions[0] - state.first, len(positions)
        if positions[-1] - positions[0] == count - 1:
            return state.states[first : first + count]  # without a copy, for which a device would wait for the host
        picked = to_device(np.array(positions, dtype=np.int64) - state.first, self.device)
        return state.states.index_select(0, picked)


def _before(start: int, count: int, seen: BoolArray | None) -> list[int]:
    """Positions of the tokens that come right before the new ones."""
    if seen is None:
        return list(range(start - 1, start + count - 1))
    first = start + count - seen.shape[1]  # of the tokens that `seen` is about
    paths = [line.nonzero()[0] for line in seen]
    return [int(first + path[-2]) if len(path) > 1 else first - 1 for path in paths]
