"""Trying what is off: never starved by what it is believed to cost, never dearer than a share of the time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from adaptspec.control.algorithms.algorithm import Choice
from adaptspec.control.algorithms.round_terms import ModelTerms, RoundTerms
from adaptspec.control.cost import CostTable
from adaptspec.control.policy import BatchSignals, Pending
from adaptspec.control.rows import total
from adaptspec.types import FloatArray, IntArray, Reason, RoundRecord

# Plain rounds' time that may be lost on tries at once.
_MOST = 3.0
# Tokens, emitted while no model drafts, after which all rows are tried whatever is expected; twice as many each time.
_FIRST_WAIT, _LONGEST = 64, 65536
# Where whole rounds alone are timed, one decision in so many is for a depth beside the best: often at first.
_FIRST_ASIDE, _ASIDE = 8, 64


class ExplorationBudget:
    """Time for rows that are off to draft as little as is allowed, and when to use it.

    Rows are tried as far as the budget goes, those with least to read first. When no model has drafted for some
    tokens all are tried, as soon as the last tries are paid off: what a wrong cost table makes too dear to be tried is
    tried all the same. A try is paid for by what it took, less what it won. Rows that win go on until they lose, or
    have lost a plain round's time in all: a token that was kept may still cost more than it brings.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._seconds = 0.0
        self._idle, self._wait = 0, _FIRST_WAIT
        self._again: IntArray = np.zeros(0, dtype=np.int64)  # rows that won, or have read a part of what they missed
        self._least = 0.0  # of the budget, for rows to go on
        self._needed = 0.0  # with less than this none of the rows can be tried

    def forget(self, row: int) -> None:
        self._again = self._again[self._again != row]
        self.renew()

    def renew(self) -> None:
        self._needed = 0.0

    def note(self, seconds: float, plain: float, idle: int) -> None:
        """A round took so long, a plain one `plain`; `idle` tokens were emitted without a model, 0 if one drafted."""
        self._seconds, self._least = min(self._seconds + self._share * seconds, _MOST * plain), -plain
        self._idle = self._idle + idle if idle else 0

    def possible(self, least: float) -> bool:
        """Whether any row may be tried where that takes more than `least` seconds."""
        return max(least, self._needed) < self._seconds or self.due or self._going

    @property
    def _going(self) -> bool:
        return len(self._again) > 0 and self._seconds > self._least

    @property
    def due(self) -> bool:
        """Whether all rows are to be tried, whatever that is expected to cost."""
        return self._idle >= self._wait and self._seconds > 0.0

    @property
    def overdue(self) -> bool:
        """Whether even rows that another drafter drafts for are to be tried."""
        return self.due and self._idle >= 2 * self._wait

    def begin(self, rows: IntArray, fixed: float, each: FloatArray) -> IntArray:
        """Which of these rows [N], by place, are tried now. It takes `each` [N] seconds, and `fixed` for any."""
        # A comparison with few rows: a fifth of the time that `np.isin` takes.
        going = (rows[:, None] == self._again).any(axis=1) & self._going
        order = np.lexsort((each, ~going))
        spent = fixed + np.cumsum(each[order])
        enough = (spent <= self._seconds) | going[order]
        count = len(rows) if enough.all() else int(np.argmin(enough))
        if self.due:
            self._wait, self._idle, count = min(2 * self._wait, _LONGEST), 0, len(rows)
        self._needed = 0.0 if count else float(spent[0])
        who: IntArray = order[:count]
        return who

    def won(self, record: RoundRecord, tried: IntArray, cost: float, token: float) -> bool:
        """Pay for a round that `tried` rows at such a cost, a token being worth so much; whether any won."""
        mine = (record.rows[:, None] == tried).any(axis=1)
        kept = record.kept * mine
        unread = mine & (record.drafted == 0) & (record.caught_up > 0)
        won = float(kept.sum()) * token
        spent = min(cost, record.total_seconds)  # whatever a table says of it
        self._seconds -= spent - won
        self._again = record.rows[(kept > 0) | unread]
        if unread.any():
            return False
        if won:
            self._wait = _FIRST_WAIT
        return won > 0.0


class Exploration:
    """Tries of all models: rows that leave one off draft with it, as little as is allowed."""

    def __init__(self, share: float, cost: CostTable, models: Mapping[int, str], tiers: Sequence[int]) -> None:
        """`share` of the time may be lost in all; `models` by number."""
        self._cost, self._models, self._tiers = cost, models, tiers
        self._budgets = {which: ExplorationBudget(share / len(models)) for which in models}
        # The model that rows try, at what cost, and the seconds that a token is worth.
        self._pending: Pending[tuple[int, IntArray, float, float]] = Pending()
        self._tried_last = self._told_last = 0  # decisions
        self._whole = [which for which, name in models.items() if cost.drafts_together(name)]
        self._aside, self._step = _FIRST_ASIDE, -1  # decisions from one to the next, which goes less deep, or deeper
        self._since = 0

    def forget(self, row: int) -> None:
        for budget in self._budgets.values():
            budget.forget(row)

    def renew(self) -> None:
        for budget in self._budgets.values():
            budget.renew()

    def explored(self, choice: Choice, terms: RoundTerms, entered: Collection[int], signals: BatchSignals) -> Choice:
        """The choice, with what is to be tried now; `entered` are the models that the plan drafts with.

        Nothing is tried before it is known what the last try took: it may be told of after the next round is decided.
        """
        if self._tried_last > self._told_last:
            return choice
        for model in terms.models:
            found = self._tried(model, choice, terms, entered, signals)
            if found is not None:
                return found
        return self._beside(choice, signals) if self._whole else choice

    def _beside(self, choice: Choice, signals: BatchSignals) -> Choice:
        """Now and then, a depth beside the planned one for all rows of a model whose drafting nobody times by itself.

        Else the times of no other depth would ever be known, and a first belief that has the best one too dear stays.
        """
        self._since += 1
        if self._since < self._aside or choice.union is not None or not choice.depths.any():
            return choice
        self._since, self._aside = 0, min(2 * self._aside, _ASIDE)
        self._step, step = -self._step, self._step
        mine = np.isin(choice.drafter, self._whole) & (choice.depths > 0)
        tiers = np.array(self._tiers)
        place = np.searchsorted(tiers, choice.depths) + step
        moved = np.minimum(tiers[np.clip(place, 0, len(tiers) - 1)], signals.limits)
        depths = np.where(mine, np.maximum(moved, 1), choice.depths)
        reasons = np.where(depths != choice.depths, int(Reason.EXPLORE), choice.reasons)
        return replace(choice, depths=depths, reasons=reasons, expected=None)

    def learn(self, record: RoundRecord, terms: RoundTerms) -> bool:
        """Take note of a round; whether what was off won."""
        ran = set(record.drafter[record.drafted > 0].tolist()) if record.drafting else ()
        emitted, self._told_last = total(record.emitted), record.decision
        for which, budget in self._budgets.items():
            budget.note(record.total_seconds, terms.plain, 0 if which in ran else emitted)
        pending = self._pending.pop(record.decision)
        if pending is None:
            return False
        which, rows, cost, token = pending
        cost += self._cost.catch_up_seconds(self._models[which], float(record.caught_up))
        return self._budgets[which].won(record, rows, cost, token)

    def _tried(
        self, model: ModelTerms, choice: Choice, terms: RoundTerms, entered: Collection[int], signals: BatchSignals
    ) -> Choice | None:
        which, budget, depth = model.which, self._budgets[model.which], self._tiers[0]
        fixed = 0.0 if which in entered else depth * model.per_step + model.start + terms.beside
        each = depth * model.per_row + float(terms.verify[depth])
        if not budget.possible(fixed + each):
            return None
        off = choice.depths == 0
        if budget.overdue:  # whatever drafts in its place waits for a round
            off |= choice.drafter != which
        idle = np.flatnonzero(off & (signals.limits >= depth))
        if not len(idle):
            return None
        reading = self._cost.catch_up_seconds(self._models[which], 1.0) * signals.cache_gap[which, idle]
        who = idle[budget.begin(signals.rows[idle], fixed, each + reading)]
        if not len(who):
            return None
        self._tried_last = signals.number
        told = which, signals.rows[who], fixed + each * len(who), terms.plain / terms.size
        self._pending.put(signals.number, told)
        depths, reasons, drafter = choice.depths.copy(), choice.reasons.copy(), choice.drafter.copy()
        depths[who], reasons[who], drafter[who] = depth, int(Reason.EXPLORE), which
        return replace(choice, depths=depths, reasons=reasons, drafter=drafter, expected=None)
