"""A drafter that is always wrong, at the full price of a draft model: the worst case for a policy."""

from __future__ import annotations

from dataclasses import replace

from adaptspec.drafting.draft_model import DraftModelDrafter
from adaptspec.drafting.drafter import DraftJob
from adaptspec.models.draft import Draft


class WrongDrafter(DraftModelDrafter):
    """Drafts like the real one, confidence included, then proposes the next token id instead.

    Right only where draft and target differ by exactly that one id, which is rare enough.
    """

    def propose(self, job: DraftJob) -> Draft:
        """See `Drafter.propose`."""
        draft = super().propose(job)
        return replace(draft, tokens=(draft.tokens + 1) % self.runner.info.vocab_size)
