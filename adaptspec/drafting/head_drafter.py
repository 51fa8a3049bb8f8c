"""Drafting with a head, which reads hidden states of the target."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.models.heads.head_runner import HeadRunner
from adaptspec.models.runner import Packed


class HeadDrafter(DraftModelDrafter):
    """A draft model that is a head: it gets the target's hidden states of committed tokens, in the text's order.

    States of prompts are passed on at once. States of decoding rows wait until it is known which drafts were accepted.
    While the drafter is not active none are passed on, and its rows are forgotten.
    """

    def __init__(self, head: HeadRunner, eos_token_ids: Collection[int] = (), catch_up_tokens: int = 512) -> None:
        super().__init__(head, eos_token_ids, catch_up_tokens)
        layers = ", ".join(map(str, head.spec.capture))
        self.description = (
            f"in the target's own tokens ({head.info.architecture}, from its states before layers {layers})"
        )
        self._head = head
        self._active = True
        self._states: torch.Tensor | None = None  # of the latest pass of decoding rows
        self._waiting: dict[int, tuple[int, int]] = {}  # by row: its first token in that pass, and its position

    def activate(self, *, active: bool) -> None:
        """See `ModelDrafter.activate`."""
        self._active = active

    def observe_pass(self, packed: Packed, starts: Sequence[int], states: torch.Tensor) -> None:
        """See `ModelDrafter.observe_pass`."""
        rows, counts = packed.rows.tolist(), packed.counts.tolist()
        if not self._active:
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

    def observe_commit(self, accepted: Sequence[tuple[int, Sequence[int]]]) -> None:
        """See `ModelDrafter.observe_commit`."""
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

    def leave(self, row: int) -> None:
        """See `Drafter.leave`: its part of the latest pass is not committed."""
        self._waiting.pop(row, None)
