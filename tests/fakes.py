"""A language model in a few lines: logits are a fixed function of the last tokens. For engine tests."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.models.runner import Forward, ModelInfo, Packed


class TableRunner:
    """A `Runner` whose logits depend on the last two tokens; `seed` picks the table, `blend` mixes in seed 0's.

    It keeps the tokens of each row, so a wrong rollback or a token fed twice changes what it says.
    `capacity` tokens in all fit into its cache; where that is bounded, room of forgotten tokens is free at once.
    """

    device = torch.device("cpu")

    def __init__(
        self, vocab: int = 24, seed: int = 0, blend: float = 0.0, context: int = 96, capacity: int = 10**9
    ) -> None:
        self.info = ModelInfo("table", "table", 0, vocab, context, f"table-{seed}-{blend}", (1,), "float32")
        base, own = (_scores(number, vocab) for number in (0, seed))
        self._table = torch.from_numpy(blend * base + (1 - blend) * own).float()
        self._rows: dict[int, list[int]] = {}
        self._reserved: dict[int, int] = {}
        self._capacity, self._bounded = capacity, capacity < 10**9
        self.fed = 0

    @property
    def free_memory(self) -> float:
        return 1.0 - sum(self._reserved.values()) / self._capacity

    def share_of(self, rows: Collection[int]) -> float:
        return sum(self._reserved.get(row, 0) for row in rows) / self._capacity

    def copy_prefix(self, source: int, target: int, length: int) -> int:
        length = min(length, self.length(source))
        if source == target:
            if length < self.length(target):
                self.truncate(target, length)
            return length
        if not length or not self.reserve(target, length):
            return 0
        self._rows[target] = self._rows[source][:length]
        return length

    def reserve(self, row: int, length: int) -> bool:
        others = sum(n for r, n in self._reserved.items() if r != row)
        if others + length > self._capacity:
            return False
        self._reserved[row] = max(length, self._reserved.get(row, 0))
        return True

    def forward(self, packed: Packed) -> Forward:
        logits, start = [], 0
        for i, (row, count, wanted) in enumerate(zip(packed.rows, packed.counts, packed.wanted, strict=True)):
            held = self._rows.setdefault(int(row), [])
            held += packed.tokens[start : start + count].tolist()
            seen = None if packed.seen is None else packed.seen[i]
            for new in range(count - wanted, count):
                text = held[: len(held) - count + new + 1]
                if seen is not None:
                    tail = np.flatnonzero(seen[new]) + len(held) - seen.shape[1]
                    text = held[: len(held) - seen.shape[1]] + [held[place] for place in tail]
                logits.append(self.logits(text))
            room = len(held) <= self._reserved.get(int(row), 0) or (self._bounded and self.reserve(int(row), len(held)))
            assert room, "a row grew beyond what was reserved"
            start += count
        self.fed += int(packed.counts.sum())
        return Forward(torch.stack(logits) if logits else torch.zeros((0, self.info.vocab_size)))

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """What follows `tokens`."""
        before = tokens[-2] if len(tokens) > 1 else 0
        return self._table[before, tokens[-1]]

    def length(self, row: int) -> int:
        return len(self._rows.get(row, []))

    def truncate(self, row: int, length: int) -> None:
        del self._rows[row][length:]
        if self._bounded:
            self._reserved[row] = min(self._reserved[row], length)

    def keep(self, row: int, base: int, places: Sequence[int]) -> None:
        held = self._rows[row]
        held[base:] = [held[base + place] for place in places]
        self.truncate(row, len(held))

    def free(self, row: int) -> None:
        self._rows.pop(row, None)
        self._reserved.pop(row, None)

    def held(self, row: int) -> list[int]:
        """The tokens cached in a row."""
        return self._rows.get(row, [])


def _scores(seed: int, vocab: int) -> FloatArray:
    """Scores [vocab, vocab, vocab] of a seed; those of a smaller vocabulary are a part of the usual one's."""
    whole = np.random.default_rng(seed).normal(0.0, 2.0, (max(vocab, 24),) * 3)
    part: FloatArray = whole[:vocab, :vocab, :vocab]
    return part


def plain_greedy(runner: TableRunner, prompt: list[int], count: int) -> list[int]:
    """What greedy decoding gives, without any engine."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(runner.logits(tokens).argmax()))
        if tokens[-1] in runner.info.eos_token_ids:
            break
    return tokens[len(prompt) :]


def array(*values: int) -> IntArray:
    """An int64 array."""
    return np.array(values, dtype=np.int64)
