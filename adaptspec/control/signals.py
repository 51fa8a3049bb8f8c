"""What has been seen of drafts: acceptance by position, shrunk from the row to its task to all traffic.

Knows counts; it decides nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaptspec.control.arrays import FEW
from adaptspec.types import FloatArray, IntArray

# Certainty is never claimed: a hazard stays inside these bounds.
_LEAST, _MOST = 0.005, 0.995


@dataclass(frozen=True)
class SignalSettings:
    """How fast counts fade and how strongly each level leans on the one above.

    Discounts are per round of a row (`row`), and per observed row-round (`task`, `everything`).
    `prior_acceptance` is believed like `prior_weight` observations. `pull` is how many expected rejections the
    level above is worth when a level's overall rate is estimated; `position_pull` how many
    observations it is worth at one position.
    """

    prior_acceptance: float = 0.6
    prior_weight: float = 20.0
    row: float = 0.99
    task: float = 0.995
    everything: float = 0.998
    pull: float = 8.0
    position_pull: float = 20.0


class AcceptanceSignals:
    """Conditional acceptance at each draft position: accepted_j / reached_j, in decayed counts.

    A round that drafted d tokens and kept a reached positions 1..min(a + 1, d). Counts are [levels, 2, depth], reached
    and rejected; level 0 is all traffic, then the tasks, then the rows. Each level is estimated as its parent's
    hazards (1 - acceptance) times one factor, how much more often it rejects than its parent, blended with its mean
    rate, then position by position from its own counts: a few rounds at shallow depths already say much about a
    row's deeper positions, which is what keeps a cautious prior from staying shallow for ever.

    The counts of a row fade with every round, drafted or not, so a row that was given up is tried again;
    those of tasks and of all traffic fade only with what is seen.
    """

    # The upper levels move slowly; their estimates are renewed after this many new row-rounds.
    _RENEW = 32

    def __init__(self, rows: int, tasks: int, depth: int, settings: SignalSettings = SignalSettings()) -> None:
        """`tasks` counts the known tasks and task 0, unknown."""
        self.settings = settings
        self._first_row = 1 + tasks
        self._counts: FloatArray = np.zeros((1 + tasks + rows, 2, depth))
        self._task: IntArray = np.zeros(rows, dtype=np.int64)
        self._discount: FloatArray = np.full(len(self._counts), settings.row)
        self._discount[: self._first_row] = settings.task
        self._prior: FloatArray = np.full((1, depth), 1.0 - settings.prior_acceptance)
        self._hazards: FloatArray = np.repeat(self._prior, tasks, axis=0)
        self._news = 0
        self._total = 0

    def start(self, row: int, task: int) -> None:
        """A new request in `row`: what its predecessor did is forgotten."""
        self._counts[self._first_row + row] = 0.0
        self._task[row] = task

    def observe(self, rows: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """Note row-rounds, all [N], rows may repeat; those that drafted nothing teach nothing, but fade."""
        if len(rows) <= FEW:
            self.observe_few(rows.tolist(), drafted.tolist(), accepted.tolist())
        else:
            self.observe_many(rows, drafted, accepted)

    def observe_few(self, rows: Sequence[int], drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """`observe`, one by one: quicker for few."""
        first, tasks = self._first_row, self._task.tolist()
        news: dict[int, _News] = {}
        for row, tokens, kept in zip(rows, drafted, accepted, strict=True):
            levels = (0, 1 + tasks[row], first + row) if tokens else (first + row,)
            for level in levels:
                if level not in news:
                    news[level] = _News(self._counts.shape[2])
                news[level].add(tokens, kept)
        for level, new in news.items():
            discount = self._discount[level] if level else self.settings.everything
            counts = self._counts[level]
            counts *= discount**new.rounds
            counts += [new.reached, new.rejected]
        self._news += news[0].rounds if 0 in news else 0

    def observe_many(self, rows: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """`observe`, all at once: quicker for many."""
        size, depth = len(self._counts), self._counts.shape[2]
        levels = np.concatenate((1 + self._task[rows], self._first_row + rows)) * (depth + 1)
        reach = np.minimum(accepted + 1, drafted)
        lost = np.where(accepted < drafted, reach, 0)
        ended, rejected = (
            np.bincount(levels + np.concatenate((at, at)), minlength=size * (depth + 1)).reshape(size, depth + 1)
            for at in (reach, lost)
        )
        reached = np.cumsum(ended[:, :0:-1], axis=1)[:, ::-1]
        rounds = reached[:, 0].copy()
        rounds[self._first_row :] += ended[self._first_row :, 0]
        first, tasks = self._first_row, slice(1, self._first_row)
        self._counts *= (self._discount**rounds)[:, None, None]
        self._counts[:, 0] += reached
        self._counts[:, 1] += rejected[:, 1:]
        known = int(reached[tasks, 0].sum())
        self._counts[0] *= self.settings.everything**known
        self._counts[0, 0] += reached[tasks].sum(axis=0)
        self._counts[0, 1] += rejected[1:first, 1:].sum(axis=0)
        self._news += known

    def observe_missed(self, rows: IntArray, judged: IntArray, agreed: IntArray) -> None:
        """Note what a draft model found of tokens that came without it, all [N], rows may repeat (see `types.Missed`).

        With q = agreed / judged, drafts over that text would have reached position j in proportion to q^(j - 1), and
        been rejected there with 1 - q: `judged` positions in all. A stretch that went well while speculation was off so
        tells at once what tries of one token would take dozens of rounds to tell. What was known of the row is as many
        tokens older by then, and fades.
        """
        known = judged > 0
        rate = agreed[known, None] / judged[known, None]
        shares = rate ** np.arange(self._counts.shape[2])
        reached = judged[known, None] * shares / shares.sum(axis=1, keepdims=True)
        seen = np.stack((reached, (1.0 - rate) * reached), axis=1)
        levels = self._first_row + rows[known]
        np.multiply.at(self._counts, levels, self.settings.row ** judged[known, None, None])
        np.add.at(self._counts, levels, seen)
        np.add.at(self._counts, 1 + self._task[rows[known]], seen)
        self._counts[0] += seen.sum(axis=0)
        self._news += int(np.count_nonzero(known))

    def acceptance(self, rows: IntArray) -> FloatArray:
        """Conditional acceptance [B, depth] of the rows, after shrinkage."""
        self._renew_if_due()
        parent = self._hazards[self._task[rows]]
        hazards = self._shrunk(self._counts[self._first_row + rows], parent, self.settings.position_pull)
        return np.asarray(1.0 - hazards, dtype=np.float64)

    def acceptance_of_one(self, row: int) -> list[float]:
        """`acceptance` of one row, quicker."""
        self._renew_if_due()
        parent = self._hazards[self._task[row]].tolist()
        reached, rejected = self._counts[self._first_row + row].tolist()
        pull, position_pull = self.settings.pull, self.settings.position_pull
        seen, lost = sum(reached), sum(rejected)
        factor = (lost + pull) / (sum(map(operator.mul, reached, parent)) + pull)
        acceptance = []
        for here, gone, usual in zip(reached, rejected, parent, strict=True):
            flat = (lost + pull * usual) / (seen + pull)
            lean = 0.5 * position_pull * (min(usual * factor, 1.0) + flat)
            acceptance.append(1.0 - min(max((gone + lean) / (here + position_pull), _LEAST), _MOST))
        return acceptance

    def of_task(self, task: int) -> list[float]:
        """Conditional acceptance by position of a new row of a task."""
        return [1.0 - hazard for hazard in self._hazards[task].tolist()]

    def rejections(self, rows: IntArray) -> FloatArray:
        """Decayed number of rejections of each row [B]: 0 for one that was never tried."""
        counts: FloatArray = self._counts[self._first_row + rows, 1].sum(axis=1)
        return counts

    def seen(self) -> FloatArray:
        """Decayed number of times each position was reached [depth], all traffic."""
        first: FloatArray = self._counts[0, 0]
        return first

    def learned(self) -> FloatArray:
        """A copy of the counts of all traffic and of the tasks [1 + tasks, 2, depth]: rows come and go."""
        counts: FloatArray = self._counts[: self._first_row].copy()
        return counts

    def restore(self, counts: FloatArray) -> None:
        """Go on from counts that `learned` once gave."""
        self._counts[: self._first_row] = counts
        self._total = int(counts[0, 0, :1].sum())
        self._renew()

    def _renew_if_due(self) -> None:
        if self._news >= min(self._RENEW, 1 + self._total // 8):
            self._renew()

    def _renew(self) -> None:
        everything = self._shrunk(self._counts[:1], self._prior, self.settings.prior_weight)
        self._hazards = self._shrunk(self._counts[1 : self._first_row], everything, self.settings.position_pull)
        self._total += self._news
        self._news = 0

    def _shrunk(self, counts: FloatArray, parent: FloatArray, position_pull: float) -> FloatArray:
        reached, rejected = counts[:, 0], counts[:, 1]
        pull = self.settings.pull
        seen, lost = reached.sum(axis=1, keepdims=True), rejected.sum(axis=1, keepdims=True)
        factor = (lost + pull) / ((reached * parent).sum(axis=1, keepdims=True) + pull)
        # Half by the parent's profile, half flat: a row that fails at the first position is not sure of the second only
        # because those that came so far elsewhere were.
        flat = (lost + pull * parent) / (seen + pull)
        lean = 0.5 * position_pull * (np.minimum(parent * factor, 1.0) + flat)
        hazards = (rejected + lean) / (reached + position_pull)
        return np.asarray(np.minimum(np.maximum(hazards, _LEAST), _MOST), dtype=np.float64)


class _News:
    """What a few row-rounds add to one level."""

    def __init__(self, depth: int) -> None:
        self.rounds = 0
        self.reached = [0] * depth
        self.rejected = [0] * depth

    def add(self, drafted: int, accepted: int) -> None:
        self.rounds += 1
        reach = min(accepted + 1, drafted)
        for place in range(reach):
            self.reached[place] += 1
        if accepted < drafted:
            self.rejected[reach - 1] += 1
