"""Drafters that are always wrong, at the full price of the real ones: the worst case for a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from adaptspec.drafting.drafter import Drafter, DraftJob, ModelFreeDrafter, Shadow
from adaptspec.models.draft import Draft


class WrongDrafter:
    """Drafts like the real one, confidence included, then proposes the next token id instead.

    Right only where draft and target differ by exactly that one id, which is rare enough.
    """

    def __init__(self, drafter: Drafter, vocab_size: int) -> None:
        self.name = drafter.name
        self.non_anticipating = drafter.non_anticipating
        self._drafter = drafter
        self._vocab_size = vocab_size

    def cache_gap(self, row: int, length: int) -> int:
        """See `Drafter.cache_gap`."""
        return self._drafter.cache_gap(row, length)

    def propose(self, job: DraftJob) -> Draft:
        """See `Drafter.propose`."""
        draft = self._drafter.propose(job)
        for i in np.flatnonzero(draft.counts).tolist():
            # What the real one has seen of its own draft is not what is proposed here, so none of it may stay.
            self._drafter.commit(int(job.rows[i]), len(job.tokens[i]))
        proposed = np.arange(draft.tokens.shape[1]) < draft.counts[:, None]
        tokens = np.where(proposed, (draft.tokens + 1) % self._vocab_size, 0)
        drawn_from = draft.distribution
        shifted = None if drawn_from is None else torch.roll(drawn_from, 1, dims=-1)
        return replace(draft, tokens=tokens, distribution=shifted)

    def commit(self, row: int, valid: int) -> None:
        """See `Drafter.commit`."""
        self._drafter.commit(row, valid)

    def free(self, row: int) -> None:
        """See `Drafter.free`."""
        self._drafter.free(row)


class WrongLookup(WrongDrafter):
    """The same for a lookup: it offers as much as the real one, and is scored as what it proposes would be: wrong."""

    def __init__(self, lookup: ModelFreeDrafter, drafter: Drafter, vocab_size: int) -> None:
        super().__init__(drafter, vocab_size)
        self._lookup = lookup

    def offer(self, row: int, tokens: list[int], most: int) -> int:
        """See `ModelFreeDrafter.offer`."""
        return self._lookup.offer(row, tokens, most)

    def expect(self, row: int, tokens: Sequence[int], start: int) -> None:
        """See `ModelFreeDrafter.expect`."""
        self._lookup.expect(row, tokens, start)

    def shadow(self, row: int, tokens: list[int], start: int) -> Shadow:
        """See `ModelFreeDrafter.shadow`."""
        return Shadow(self._lookup.shadow(row, tokens, start).drafted, 0)


def wrong(drafter: Drafter, vocab_size: int) -> WrongDrafter:
    """The hostile form of a drafter."""
    if isinstance(drafter, ModelFreeDrafter):
        return WrongLookup(drafter, drafter, vocab_size)
    return WrongDrafter(drafter, vocab_size)
