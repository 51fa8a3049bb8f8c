"""What every arm has earned and spent: told by rounds, kept in sums that fade, of all traffic, tasks and requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from adaptspec.control.algorithms.arms import Arms
from adaptspec.control.cost import CostTable, batch_bucket
from adaptspec.control.policy import BatchSignals, Learner
from adaptspec.control.tasks import TASKS
from adaptspec.types import FloatArray, IntArray, RoundRecord

Scope = Literal["request", "task", "global"]
# Rounds n, earned e, spent s, and their second moments: what a ratio of sums and its error are made of.
N, EARNED, SPENT, EARNED2, CROSS, SPENT2 = range(6)
# Scales that bring every feature to about 0 to 1.
_BATCH, _ENTROPY, _CONTEXT, _POSITION, _LENGTH = 6.0, 4.0, 12.0, 8.0, 8.0
# Rounds of an arm that the estimate of its task counts for in a request, and that of all traffic in a task: about two
# episodes.
_PRIOR = 16.0
# How fast a request's acceptance length follows its drafts.
_FOLLOWS = 0.25
# A round that took more than so many times what it should, or less than one over it, is a hiccup: no arm's doing.
_HICCUP = 2.0


class Observed(NamedTuple):
    """What G contexts, ascending, saw of K arms in the same `rounds` rounds: sums over these, [G, K, 6]."""

    contexts: IntArray
    bucket: int
    rounds: int
    sums: FloatArray


class Ledger(Learner):
    """Sums [contexts, buckets, K, 6] of all traffic, then each task, then each request, as far as the scope goes.

    `request`: a context per request, leaning on its task; `task`: one per task, leaning on all traffic; `global`: one
    for all. Each keeps sums per bucket of 1, 2, 3-4, 5-8 ... rows. A context is read as its own sums plus those of the
    level above, scaled down to at most `_PRIOR` rounds of each arm: a new request begins with what its task is like,
    and soon goes by its own record.
    """

    def __init__(self, scope: Scope, rows: int, tasks: int, arms: int, *, discount: float = 0.993) -> None:
        self.scope, self.discount, self._rows = scope, discount, rows
        self.buckets = batch_bucket(rows) + 1
        # Two contexts for each row, in turns: outcomes of the last request may come while the next one runs.
        sizes = [1, tasks, 2 * rows][: {"task": 2, "request": 3}.get(scope, 1)]
        self.count = sizes[-1]
        # Known tasks have a base each; names of users' own share that of task 0, since one each would cost more.
        self.kinds = min(tasks, 1 + len(TASKS))
        self.features = self.kinds + 5
        self._first, self._levels = sum(sizes[:-1]), len(sizes)
        self._kept = {"sums.all": slice(0, 1)} | ({"sums.task": slice(1, 1 + tasks)} if len(sizes) > 1 else {})
        self._sums: FloatArray = np.zeros((sum(sizes), self.buckets, arms, 6))
        self._of_row: IntArray = np.arange(rows) if scope == "request" else np.zeros(rows, dtype=np.int64)
        self._task_of: IntArray = np.arange(self.count) if scope == "task" else np.zeros(self.count, dtype=np.int64)
        self._entropy, self._length = (np.zeros(rows) for _ in range(2))

    def start(self, row: int) -> int:
        """A request begins, which has seen nothing; its context, where each has one of its own."""
        self._entropy[row], self._length[row] = 0.0, 0.0
        if self.scope == "request":
            context = self._of_row[row] = (self._of_row[row] + self._rows) % (2 * self._rows)
            self._sums[self._first + context] = 0.0
        return int(self._of_row[row])

    def of(self, rows: IntArray, tasks: IntArray) -> IntArray:
        """The context of each row, whose request is of one of these tasks; both [B]."""
        if self.scope == "task":
            return tasks
        found: IntArray = self._of_row[rows]
        if self.scope == "request":
            self._task_of[found] = tasks
        return found

    def bucket(self, size: int) -> int:
        """Which batch sizes a round of `size` rows is compared with."""
        return min(batch_bucket(size), self.buckets - 1)

    def add(self, contexts: IntArray, bucket: int, told: FloatArray, more: int = 0) -> Observed:
        """Take in `told` [M, B, K, 3] (seen, earned, spent) of M rounds of the rows that stand for `contexts` [B], and
        let fade what is known as if they were `more`.

        Rows of one context in one round count as a single observation, their mean: they share much of what happened.
        """
        rounds, size, arms, _ = told.shape
        path = self._path(contexts)
        places, inverse = np.unique(path, return_inverse=True)
        belongs = np.zeros((len(places), size))
        belongs[inverse.reshape(path.shape), np.arange(size)] = 1.0
        seen = (belongs @ told.reshape(rounds, size, -1)).reshape(rounds, len(places), arms, 3)
        count = np.maximum(seen[..., 0], 1.0)
        earned, spent = seen[..., 1] / count, seen[..., 2] / count
        moments = (seen[..., 0] > 0, earned, spent, earned * earned, earned * spent, spent * spent)
        new = np.stack(moments, axis=-1).sum(axis=0)
        self._sums[places, bucket] = self._sums[places, bucket] * self.discount ** (rounds + more) + new
        own = places >= self._first
        return Observed(places[own] - self._first, bucket, rounds + more, new[own])

    def read(self, contexts: IntArray, bucket: int) -> FloatArray:
        """[m, K, 6] of some contexts, each with what it leans on."""
        levels = self._sums[self._path(contexts), bucket]
        found: FloatArray = levels[0]
        for own in levels[1:]:
            found = own + np.minimum(1.0, _PRIOR / np.maximum(found[..., :1], 1e-9)) * found
        return found

    def note(self, rows: IntArray, contexts: IntArray, records: Sequence[RoundRecord]) -> None:
        """How sure drafts were at their ends, and how long they held, of rows whose request is still the same."""
        same = self._of_row[rows] == contexts if self.scope == "request" else np.ones(len(rows), dtype=np.bool_)
        for record in (record for record in records if record.entropy.shape[1]):
            last = record.entropy[np.arange(len(rows)), record.chain - 1]
            known = same & (record.chain > 0) & ~np.isnan(last)
            here = rows[known]
            self._entropy[here] = last[known]
            self._length[here] += _FOLLOWS * (record.accepted[known] - self._length[here])

    def describe(self, signals: BatchSignals, shares: FloatArray) -> FloatArray:
        """The features of contexts [m, F], means over rows weighed by `shares` [m, B]: one-hot task (so every arm has a
        base per task); log2 batch size, entropy of the last drafted token, log2 context length, log2 of tokens
        emitted so far, and the acceptance length (tokens accepted per draft), all about 0 to 1.
        """
        rows, at = np.zeros((len(signals.rows), self.features)), self.kinds
        rows[np.arange(len(rows)), np.where(signals.tasks < self.kinds, signals.tasks, 0)] = 1.0
        rows[:, at] = math.log2(signals.round_size) / _BATCH
        rows[:, at + 1] = self._entropy[signals.rows] / _ENTROPY
        rows[:, at + 2] = np.log2(signals.context + 1.0) / _CONTEXT
        rows[:, at + 3] = np.log2(signals.position + 1.0) / _POSITION
        rows[:, at + 4] = self._length[signals.rows] / _LENGTH
        found: FloatArray = shares @ rows
        return found

    def state(self) -> dict[str, FloatArray]:
        return {name: self._sums[part] for name, part in self._kept.items()}

    def _path(self, contexts: IntArray) -> IntArray:
        """[levels, m] where contexts and those they lean on are found."""
        return np.stack((np.zeros_like(contexts), 1 + self._task_of[contexts], self._first + contexts))[: self._levels]


class Played(NamedTuple):
    """A round: what each row's drafter had to catch up [B], whether no other rows took part."""

    cache_gap: IntArray
    alone: bool
    record: RoundRecord


class Rewarder:
    """Earned: emitted tokens. Spent: seconds attributed to the row, over a plain round's seconds per row. So off is 1.

    A round's seconds are split over its rows in proportion to what the cost table says each of them asked for: its
    share of a plain round, its draft steps and its extra tokens in the verify pass. A row at off is thus not charged
    for the drafts of others. What catching up took is left out of `spent`: it is the price of entering, not of staying,
    and is charged to every arm that would have to pay it when arms are compared (`catch_up`).

    A row that drafted d tokens with an arm says exactly what the shallower arms of the family would have got accepted:
    min(accepted, depth), in the cost table's time for the round cut to that depth. A depth above what was really run (a
    guard or a limit came between) is not credited.
    """

    def __init__(self, arms: Arms, cost: CostTable, drafters: tuple[str, ...]) -> None:
        self._arms, self._cost, self._drafters = arms, cost, drafters
        # Cuts: every depth of an arm, and the deepest of all for what was really drafted.
        self._cuts: IntArray = np.unique(np.append(arms.depths[arms.depths > 0], arms.depths.max()))
        self._cut_of: IntArray = np.minimum(np.searchsorted(self._cuts, arms.depths), len(self._cuts) - 1)

    def rewards(self, arms: IntArray, size: int, played: Sequence[Played]) -> FloatArray:
        """[M, B, K, 3]: seen (1 or 0), earned and spent, by the rows that played `arms` [B] in M rounds of `size` rows
        in all; zero where nothing was seen. Of off only the rounds are told.
        """
        kinds, records = self._arms, [one.record for one in played]
        depths = np.stack([record.depths for record in records])
        drafted = np.stack([record.drafted for record in records])
        rewards = np.zeros((*drafted.shape, len(kinds), 3))
        every = np.arange(len(arms))
        if depths.any():
            # Reading what it has missed may take a drafter several rounds, in which its rows do not draft yet.
            reading = (drafted == 0) & (np.stack([one.cache_gap for one in played]) > 0)
            seen = kinds.reveals[arms] & (kinds.depths <= depths[..., None]) & ~reading[..., None]
            emitted = np.stack([record.emitted for record in records])
            accepted = np.stack([record.accepted for record in records])
            spent, whole = self._spent(arms, size, drafted, played)
            earned = np.minimum(emitted[..., None], np.minimum(accepted[..., None], self._cuts) + 1)
            rewards[..., 0] = seen
            rewards[..., 1] = earned[..., self._cut_of]
            rewards[..., 2] = spent[..., self._cut_of]
            # A host may draft deeper than the arm asks for: then the arm's is what the round says of its depth.
            exact = depths <= kinds.depths[arms]
            rewards[:, every, arms, 1] = np.where(exact, emitted, rewards[:, every, arms, 1])
            rewards[:, every, arms, 2] = np.where(exact, whole, rewards[:, every, arms, 2])
            rewards[..., 1:] *= rewards[..., :1]
        if kinds.off is not None:
            # Nothing is earned that was not known, but time goes by.
            rewards[:, arms == kinds.off, kinds.off, 0] = 1.0
        return rewards

    def arm_costs(self, size: int, context: float) -> tuple[FloatArray, FloatArray]:
        """[K] seconds of a round of `size` rows all at an arm, and of one token of catch-up, in plain rounds."""
        arms, costs, catch_up = self._arms, np.ones(len(self._arms)), np.zeros(len(self._arms))
        plain = self._cost.plain_seconds(size, context)
        for which, name in enumerate(self._drafters):
            here = (arms.drafters == which) & (arms.depths > 0)
            depths = arms.depths[here].astype(np.float64)
            costs[here] = self._cost.round_seconds(name, size, depths, depths * size, context) / plain
            catch_up[here] = self._cost.catch_up_seconds(name, 1.0) * size / plain
        return costs, catch_up

    def _spent(
        self, arms: IntArray, size: int, drafted: IntArray, played: Sequence[Played]
    ) -> tuple[FloatArray, FloatArray]:
        """[M, B, L] what rows spend by the cost table if the round is cut to a depth; [M, B] what they did spend."""
        context, names = float(np.mean([one.record.context.sum() for one in played])), self._drafters
        unit = self._cost.plain_seconds(size, context) / size
        cut = np.minimum(drafted[..., None], self._cuts)
        tokens, steps = cut.sum(axis=1), cut.max(axis=1).astype(np.float64)  # [M, L]
        rounds = [self._cost.round_seconds(name, size, steps, tokens.astype(np.float64), context) for name in names]
        rates = (np.array(rounds) - size * unit) / np.maximum(tokens, 1)  # [drafters, M, L] seconds of a drafted token
        each = np.moveaxis(rates[self._arms.drafters[arms]], 0, 1)
        spent = 1.0 + np.maximum(each * cut, 0.0) / unit
        if any(one.record.branches is not None for one in played):
            spent += self._verified_beside(size, tokens, played, context) / unit
        seconds = np.array([one.record.total_seconds for one in played])
        caught_up = np.array([one.record.caught_up for one in played])
        per_token = max((self._cost.catch_up_seconds(name, 1.0) for name in names), default=0.0)
        ratio = seconds / (spent[..., -1].sum(axis=1) * unit + per_token * caught_up)
        slowness = np.where([one.alone for one in played], np.clip(ratio, 1.0 / _HICCUP, _HICCUP), 1.0)
        return spent, spent[..., -1] * slowness[:, None]

    def _verified_beside(self, size: int, tokens: IntArray, played: Sequence[Played], context: float) -> FloatArray:
        """[M, B, L] seconds of verifying what rows had beside their longest paths, whose `tokens` [M, L] are paid."""
        beside = np.stack([_beside(one.record, self._cuts) for one in played])
        others, paid = beside.sum(axis=1), (size + tokens).astype(np.float64)
        more = self._cost.verify_curve(size, paid + others, context) - self._cost.verify_curve(size, paid, context)
        return np.asarray((more / np.maximum(others, 1))[:, None] * beside)


def _beside(record: RoundRecord, cuts: IntArray) -> IntArray:
    """[B, L] nodes that each row has within depths [L] beside as many tokens of its longest path."""
    if record.branches is None:
        return np.zeros((len(record.rows), len(cuts)), dtype=np.int64)
    depths = record.branches.tree.depths
    inside = np.arange(depths.shape[1]) < record.nodes[:, None]
    within = (inside[..., None] & (depths[..., None] <= cuts)).sum(axis=1)
    return np.asarray(within - np.minimum(record.drafted[:, None], cuts))
