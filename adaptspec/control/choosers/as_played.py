"""A round as one drafter played it, or would have: what a chooser of one drafter learns from a round of several.

Knows records; it does not know what is learned from them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adaptspec.types import Missed, RoundRecord


def as_played(record: RoundRecord, drafter: int, deepest: int) -> RoundRecord:
    """The round of `drafter` (in the policy's numbers): where it did not run and was not scored, it was off.

    A scored row is a round at depth `emitted`, or at `deepest` if that is less: exactly what it would have drafted and
    got then. Its own outcome at that depth, not a bound: the depth is known, the draft is, and so are all tokens
    that it would have been compared with. Which depths are seen so depends on how the drafter that ran fared: deep
    positions are seen where the text was easy for that one. No scores are left in the record: they have been used.
    """
    ran = record.drafter == drafter
    if record.shadow is None or record.shadow_drafted is None:
        if ran.all():
            return record
        scored, reach, got = np.zeros_like(ran), record.drafted, record.accepted
    else:
        reach, got = record.shadow_drafted[drafter], record.shadow[drafter]
        scored = got >= 0
        if ran.all() and not scored.any():
            return replace(record, shadow=None, shadow_drafted=None)
    missed = record.missed
    return replace(
        record,
        depths=np.where(scored, np.minimum(record.emitted, deepest), record.depths * ran),
        drafted=np.where(scored, np.minimum(reach, deepest), record.drafted * ran),
        accepted=np.where(scored, np.minimum(got, deepest), record.accepted * ran),
        emitted=np.where(scored, np.minimum(got, deepest) + 1, record.emitted),
        # A drafter that is scored states no confidence; what stands there is another's.
        confidence=np.where((ran & ~scored)[:, None], record.confidence, np.nan)[:, :deepest],
        missed=None if missed is None else Missed(missed.judged * ran, missed.agreed * ran),
        shadow=None,
        shadow_drafted=None,
    )
