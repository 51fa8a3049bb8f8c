"""Cuts drafts where a grammar refuses them, before the target spends a pass on what cannot be kept.

A lookup knows no grammar; a draft model draws from masked scores already. A refused token has probability 0, and what
follows it has no mask: the matcher cannot read on. Under every lossless method this changes no output: `coupled` would
reject the token anyway, and a lookup's token is a point mass, so leaving it out is leaving out what is sure to fail.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaptspec.models.draft import Draft
from adaptspec.models.grammars import Constraint


def cut_refused(draft: Draft, constraints: Sequence[Constraint | None]) -> Draft:
    """The draft of B rows with each row that has a constraint cut to what its grammar takes."""
    counts = draft.counts.tolist()
    for i, constraint in enumerate(constraints):
        if constraint is not None and counts[i]:
            counts[i] = constraint.valid(draft.tokens[i, : counts[i]].tolist())
    kept = np.array(counts, dtype=np.int64)
    return draft if np.array_equal(kept, draft.counts) else draft.cut(kept)
