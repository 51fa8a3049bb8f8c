"""Passes hidden states from the target to a head: of committed tokens alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from adaptspec.models.heads.head_runner import HeadRunner
from adaptspec.models.runner import Packed


class CommittedStates:
    """The target's hidden states, for one head.

    States of prompts are passed on at once. States of decoding rows wait until it is known which drafts were accepted.
    While the head is not `active`, none are passed, and its rows are forgotten.
    """

    def __init__(self, head: HeadRunner) -> None:
        self._head = head
        self.active = True
        self._states: torch.Tensor | None = None  # of the latest pass of decoding rows
        self._waiting: dict[int, tuple[int, int]] = {}  # by row: its first token in that pass, and its position

    def on_pass(self, packed: Packed, starts: Sequence[int], states: torch.Tensor | None) -> None:
        """After a pass: states [sum(counts), width] of all its tokens, whose rows begin at positions `starts`."""
        assert states is not None, "the target's states are not captured"
        rows, counts = packed.rows.tolist(), packed.counts.tolist()
        if not self.active:
            self._states, self._waiting = None, {}
            for row in rows:
                self._head.forget(row)
            return
        decoding = len(rows) - packed.prompts
        if decoding:
            self._states, self._waiting, first = states, {}, 0
            for row, start, count in zip(rows[:decoding], starts, counts, strict=False):
                self._waiting[row] = first, start
                first += count
            if packed.prompts:
                self._states = states[:first].clone()  # a view would keep the states of prompts
        if packed.prompts:
            read = states[sum(counts[:decoding]) :]
            self._head.on_hidden_states(rows[decoding:], starts[decoding:], counts[decoding:], read)

    def commit(self, accepted: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Rows of the latest pass, and which of their drafted nodes stay (places among them, ascending)."""
        rows, starts, counts, picked = list[int](), list[int](), list[int](), list[int]()
        for row, nodes in accepted:
            if row in self._waiting:
                first, start = self._waiting.pop(row)
                rows.append(row)
                starts.append(start)
                counts.append(1 + len(nodes))
                picked += [first, *(first + 1 + node for node in nodes)]  # the newest token comes before its draft
        if rows and self._states is not None:
            at = torch.tensor(picked, device=self._states.device)
            self._head.on_hidden_states(rows, starts, counts, self._states.index_select(0, at))
        if not self._waiting:
            self._states = None

    def free(self, row: int) -> None:
        """The row's request has ended or given way."""
        self._waiting.pop(row, None)
