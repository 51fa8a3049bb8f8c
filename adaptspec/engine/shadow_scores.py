"""Scoring drafters in rounds in which they do not draft, against the tokens that were emitted anyway.

Knows drafters that can be scored for next to nothing; it does not know who learns from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from adaptspec.control.policy import Decision
from adaptspec.drafting.drafter import ModelFreeDrafter
from adaptspec.types import IntArray


@dataclass(frozen=True)
class Shadows:
    """What drafters that did not run would have drafted and got accepted, [drafters, B] each; -1 where unknown."""

    drafted: IntArray
    accepted: IntArray


class ShadowScores:
    """Asks each watched drafter that is cheap enough what it would have done for rows that it did not draft for."""

    def __init__(self, lookups: Mapping[int, ModelFreeDrafter], drafters: int) -> None:
        """`lookups` by their numbers among all `drafters`."""
        self._count = drafters
        self._scored = lookups

    def of(self, decision: Decision, rows: IntArray, tokens: Sequence[list[int]], context: IntArray) -> Shadows | None:
        """Scores of the B decoding rows after commit: `tokens` hold `context` [B] tokens and what the round emitted.

        `rows` and `tokens` may go on with rows that do not decode yet. None where no watched drafter can be scored.
        """
        depths, drafter = decision.depths.tolist(), decision.drafter.tolist()
        drafted, accepted = ([[-1] * len(depths) for _ in range(self._count)] for _ in range(2))
        known = False
        for which in decision.watched:
            lookup = self._scored.get(which)
            if lookup is None:
                continue
            for i, depth in enumerate(depths):
                if not depth or drafter[i] != which:
                    shadow = lookup.shadow(int(rows[i]), tokens[i], int(context[i]))
                    drafted[which][i], accepted[which][i] = shadow.drafted, shadow.accepted
                    known = True
        return Shadows(np.array(drafted), np.array(accepted)) if known else None
