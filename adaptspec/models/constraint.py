"""One request's grammar at work: which tokens may follow, at any position of a draft.

The matcher walks along a draft as far as it is asked to look and is taken back by exactly what was not kept, so a mask
at position j has seen the committed output and draft[:j], no more and no less. It belongs to a request, not to a row of
the batch: whoever has the row next has a matcher of its own. Knows tokens and a matcher; nothing of grammars or rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np

from adaptspec.types import BoolArray


class Matcher(Protocol):
    """What it needs of a parser (llguidance's LLMatcher)."""

    def try_consume_tokens(self, tokens: list[int]) -> int:
        """Go on by as many of the tokens as fit; how many did. Says 0 to a token that does not fit, and stays."""

    def rollback(self, num_tokens: int) -> bool:
        """Forget the latest tokens."""

    def compute_bitmask(self) -> bytes:
        """Which tokens may follow, a bit each, lowest first."""

    def get_error(self) -> str:
        """What went wrong for good; empty if nothing did."""


class Constraint:
    """Masks for one request. `error` says why it cannot go on: its request must end then."""

    def __init__(self, matcher: Matcher, vocab_size: int, ends: Collection[int]) -> None:
        """`ends` are the tokens that end a text: nothing is read behind them."""
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._ends = frozenset(ends)
        self._ahead: list[int] = []  # consumed beyond what is committed
        self._masks: dict[int, BoolArray] = {}  # by how many tokens are ahead
        self.error: str | None = None

    def mask(self, draft: Sequence[int]) -> BoolArray:
        """Which tokens [V] may follow the output and `draft`.

        All may where `draft` itself breaks the grammar or ends the text: whatever is drawn there is thrown away.
        """
        if self._seek(draft) < len(draft):
            return np.ones(self._vocab_size, dtype=np.bool_)
        known = self._masks.get(len(draft))
        if known is None:
            known = self._masks[len(draft)] = self._compute()
        return known

    def valid(self, draft: Sequence[int]) -> int:
        """How many tokens of `draft` the grammar takes; one that may end the text is the last."""
        taken = self._seek(draft)
        if taken < len(draft) and draft[taken] in self._ends and self.mask(draft[:taken])[draft[taken]]:
            return taken + 1
        return taken

    def commit(self, tokens: Sequence[int]) -> None:
        """The output grew by `tokens`; what was looked at beyond them is taken back."""
        kept = self._seek(tokens)
        if kept < len(tokens) and tokens[kept] not in self._ends:
            self.error = self.error or f"the output left its grammar at token {tokens[kept]}"
        self._ahead.clear()
        self._masks.clear()

    def _seek(self, draft: Sequence[int]) -> int:
        """Move to just behind `draft`, or as far along as it goes; how far that is."""
        shared = 0
        for token, wanted in zip(self._ahead, draft, strict=False):
            if token != wanted:
                break
            shared += 1
        if shared < len(self._ahead):
            self._matcher.rollback(len(self._ahead) - shared)
            del self._ahead[shared:]
            self._masks = {place: mask for place, mask in self._masks.items() if place <= shared}
        for token in draft[shared:]:
            if token in self._ends or not self._takes(token):
                break
            self._ahead.append(token)
        return len(self._ahead)

    def _takes(self, token: int) -> bool:
        try:
            return self._matcher.try_consume_tokens([token]) == 1
        except Exception as error:  # noqa: BLE001 - a parser that fails must end its own request, not the round
            self.error = self.error or f"{type(error).__name__}: {error}"
            return False

    def _compute(self) -> BoolArray:
        try:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        except Exception as error:  # noqa: BLE001 - as above
            self.error = self.error or f"{type(error).__name__}: {error}"
            bits = np.zeros(0, dtype=np.uint8)
        allowed = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        if not allowed.any():
            self.error = self.error or self._matcher.get_error() or "it leaves no token to go on with"
            return np.ones(self._vocab_size, dtype=np.bool_)
        return allowed
