"""Drafting with a head, which reads hidden states of the target (EAGLE, MTP)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.models.async_runner import to_device
from adaptspec.models.heads.head_runner import HeadRunner
from adaptspec.models.runner import Packed

CATCH_UP_TOKENS = 512  # maximum tokens that a head reads in one pass


class HeadDrafter(DraftModelDrafter):
    """A draft model that is a head: it receives the target's hidden states of committed tokens, in text order.

    States of prompts are passed on at once. States of decoding rows are held until the accepted nodes are known.
    While the drafter is inactive no states are passed on, and the head forgets its rows.
    """

    def __init__(
        self, head: HeadRunner, eos_token_ids: Collection[int] = (), catch_up_tokens: int = CATCH_UP_TOKENS
    ) -> None:
        super().__init__(head, eos_token_ids, catch_up_tokens)
        layers = ", ".join(map(str, head.spec.capture))
        self.description = (
            f"in the target's tokens ({head.info.architecture}, from the target's states before layers {layers})"
        )
        self._head = head
        self._active = True
        self._states: torch.Tensor | None = None  # of the latest pass of decoding rows
        # By row: index of its first token in that pass, and the token's position in the text.
        self._pending: dict[int, tuple[int, int]] = {}

    def activate(self, *, active: bool) -> None:
        """See `ModelDrafter.activate`."""
        self._active = active

    def observe_pass(self, packed: Packed, starts: Sequence[int], states: torch.Tensor) -> None:
        """See `ModelDrafter.observe_pass`."""
        rows, counts = packed.rows.tolist(), packed.counts.tolist()
        if not self._active:
            self._states, self._pending = None, {}
            for row in rows:
                self._head.forget(row)
            return
        decoding = len(rows) - packed.prompts
        if decoding:
            self._states, self._pending, first = states, {}, 0
            for row, start, count in zip(rows[:decoding], starts, counts, strict=False):
                self._pending[row] = first, start
                first += count
            if packed.prompts:
                self._states = states[:first].clone()  # a view would keep the states of prompts
        if packed.prompts:
            read = states[sum(counts[:decoding]) :]
            self._head.on_hidden_states(rows[decoding:], starts[decoding:], counts[decoding:], read)

    def observe_commit(self, accepted: Sequence[tuple[int, Sequence[int]]]) -> None:
        """See `ModelDrafter.observe_commit`."""
        rows, starts, counts, committed = list[int](), list[int](), list[int](), list[int]()
        for row, nodes in accepted:
            if row in self._pending:
                first, start = self._pending.pop(row)
                rows.append(row)
                starts.append(start)
                counts.append(1 + len(nodes))
                committed += [first, *(first + 1 + node for node in nodes)]  # the newest token comes before its draft
        if rows and self._states is not None:
            at = to_device(np.array(committed, dtype=np.int64), self._states.device)
            self._head.on_hidden_states(rows, starts, counts, self._states.index_select(0, at))
        if not self._pending:
            self._states = None

    def leave(self, row: int) -> None:
        """See `Drafter.leave`. The row's states of the latest pass are discarded."""
        self._pending.pop(row, None)
