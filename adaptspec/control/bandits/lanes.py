"""Rounds in which rows play arms of different kinds: stop rules of their own, or whole policies.

Knows arms and rows; not how an arm was picked.
"""

from __future__ import annotations

import numpy as np

from adaptspec.control.arrays import some
from adaptspec.control.bandits.arms import Arms, NestedPolicy
from adaptspec.control.choosers.chooser import Choice
from adaptspec.control.policy import BatchSignals
from adaptspec.draft_tables import StopTable
from adaptspec.types import IntArray, RoundRecord


class Lanes:
    """Splits a batch by what its arms bring along, and puts the round together again.

    A nested policy decides for the rows that play it, and learns from all rounds, as if it had decided them.
    """

    def __init__(self, arms: Arms) -> None:
        self._arms = arms
        self._rules = list(dict.fromkeys(rule for rule in arms.stops if rule is not None))
        self._rule_of: IntArray = np.array([-1 if s is None else self._rules.index(s) for s in arms.stops])

    def choose(self, choice: Choice, arms: IntArray, signals: BatchSignals) -> Choice:
        """The round's choice from that of arms [B] at their depths."""
        depths = np.minimum(choice.depths, signals.limits)
        reasons, drafter = choice.reasons.copy(), self._arms.drafters[arms]
        parts: list[tuple[IntArray, StopTable | None]] = []
        for arm in np.unique(arms[self._arms.opaque[arms]]).tolist():
            nested = self._arms.policies[arm]
            mine = np.flatnonzero(arms == arm)
            assert nested is not None, "opaque arms are policies"
            sub = nested.numbers.signals(signals.take(mine))
            decision = nested.policy.decide(sub)
            depths[mine], drafter[mine] = decision.depths, nested.numbers.drafter(decision.drafter)
            reasons[mine] = decision.reasons
            parts.append((mine, decision.stop))
        rules = self._rule_of[arms]
        for number in np.unique(rules[rules >= 0]).tolist():
            parts.append((np.flatnonzero(rules == number), self._rules[number].table(choice)))
        stop = StopTable.stacked(parts, len(arms)) if some(depths) else None
        return Choice(depths, reasons, drafter=drafter, stop=stop, provenance=choice.provenance)

    def learn(self, record: RoundRecord) -> None:
        """Teach stop rules and nested policies."""
        for rule in self._rules:
            if rule.learns:
                rule.learn(record)
        for nested in self._arms.policies:
            if nested is not None:
                nested.policy.learn(_as_seen_by(nested, record))


def _as_seen_by(nested: NestedPolicy, record: RoundRecord) -> RoundRecord:
    return nested.numbers.record(record)
