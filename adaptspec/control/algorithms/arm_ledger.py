"""What each arm earned and spent: rewards of rounds, and their discounted sums per context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from adaptspec.arrays import FloatArray, IntArray
from adaptspec.control.algorithms.algorithm import Parts
from adaptspec.control.algorithms.arms import Arms
from adaptspec.control.algorithms.round_terms import CATCH_UP_ROUNDS
from adaptspec.control.cost_model import CostModel, batch_bucket
from adaptspec.control.policy import Learner
from adaptspec.rounds import RoundRecord

Scope = Literal["request", "task", "global"]
# The last axis of sums: rounds, tokens earned, time spent, and their second moments.
N, EARNED, SPENT, EARNED2, CROSS, SPENT2 = range(6)
# Rounds of an arm that the next wider level counts for at most: about two episodes.
_PRIOR_ROUNDS = 16.0
# The prior of an arm, worth one round: acceptance of each token in percent, and the deviation of the tokens per round
# over the root of the depth.
_PRIOR_ACCEPTANCE, _PRIOR_DEVIATION = 60, 0.5
# A round that takes more than so many times what was predicted, or less than one over it, is a hiccup of the machine.
_HICCUP = 2.0


@dataclass(eq=False)
class Assignment:
    """The arms that one decision assigns to B rows.

    `memo` [B, X] is what the rule remembers of its choice for each row's context. `alone`: no rows of other policies
    and no prompts share the round, so its seconds are those of these rows. `learned` counts the rounds that ran by
    this decision and were learned from.
    """

    rows: IntArray  # [B]
    serials: IntArray  # [B] which request of its row each one is
    contexts: IntArray  # [B]
    arms: IntArray  # [B]
    cache_gap: IntArray  # [B] tokens that the drafter of the arm lags behind
    memo: FloatArray
    round_size: int  # rows of the round, those of other policies included
    alone: bool
    learned: int = 0

    @property
    def key(self) -> tuple[bytes, ...]:
        """Equal for assignments whose rounds are summed up together."""
        parts = (self.rows, self.serials, self.contexts, self.arms, self.memo, np.array(self.round_size))
        return tuple(part.tobytes() for part in parts)


class PlayedRound(NamedTuple):
    """A round that ran as it was assigned."""

    assignment: Assignment
    record: RoundRecord


class Rewards(NamedTuple):
    """What M rounds show of K arms for each of B rows; [M, B, K] each, 0 where nothing was seen."""

    seen: FloatArray  # 1 or 0
    earned: FloatArray  # tokens
    spent: FloatArray  # plain rounds: seconds attributed to the row over a plain round's seconds per row


class ContextSums(NamedTuple):
    """What G contexts, ascending, saw of K arms in the same rounds."""

    contexts: IntArray  # [G]
    bucket: int
    rounds: int
    sums: FloatArray  # [G, K, 6] without discount


@dataclass(frozen=True)
class ArmEstimates:
    """What is known of K arms in m contexts. Off is exactly 1, without error."""

    seen: FloatArray  # [m, K] discounted rounds that show the arm; infinite for off
    ratio: FloatArray  # [m, K] goodput over that of plain decoding, with the price of catching up
    error: FloatArray  # [m, K] standard error of the ratio
    spread: FloatArray  # [m, K] standard deviation of one round's ratio
    staying: FloatArray  # [m, K] the factor of `ratio` for catching up; 1 where the drafter does not lag
    total: FloatArray  # [m] discounted rounds of all arms


class ArmCosts(NamedTuple):
    """Predicted costs of K arms, in plain rounds."""

    round: FloatArray  # [K] a round all of whose rows play the arm
    catch_up: FloatArray  # [K] one token per row that the drafter of the arm lags behind


class RewardModel:
    """Turns rounds into rewards of arms, with the cost model.

    Earned: emitted tokens. Spent: seconds attributed to the row, over a plain round's seconds per row. So off is
    exactly 1. A round's seconds are split over its rows by what the cost model charges each: its share of a plain
    round, and its drafted tokens. So a row at off does not pay for the drafts of others. Catching up is left out of
    `spent`: it is the price of entering an arm, not of staying.

    A row that drafts with an arm shows what shallower arms of the family would have earned: min(accepted, depth) + 1
    tokens in the predicted time of the round cut to that depth. Depths that did not run, because a guard or a limit
    lowered them, are not credited.
    """

    def __init__(self, arms: Arms, cost: CostModel, drafters: Sequence[str]) -> None:
        self._arms, self._cost, self._drafters = arms, cost, drafters

    def rewards(self, rounds: Sequence[PlayedRound]) -> Rewards:
        """Rewards of rounds with equal `Assignment.key`. Of off only the rounds are counted: its ratio is known."""
        kinds, arms, records = self._arms, rounds[0].assignment.arms, [one.record for one in rounds]
        rewards = Rewards(*np.zeros((3, len(rounds), len(arms), len(kinds))))
        if kinds.off is not None:
            rewards.seen[:, arms == kinds.off, kinds.off] = 1.0
        depths = np.stack([record.depths for record in records])  # [M, B]
        if not depths.any():
            return rewards
        drafted = np.stack([record.drafted for record in records])
        accepted = np.stack([record.accepted for record in records])
        emitted = np.stack([record.emitted for record in records])
        # Rows do not draft while their drafter catches up, which may take several rounds.
        reading = (drafted == 0) & (np.stack([one.assignment.cache_gap for one in rounds]) > 0)
        seen = kinds.reveals[arms] & (kinds.depths <= depths[..., None]) & ~reading[..., None]
        earned = np.minimum(emitted[..., None], np.minimum(accepted[..., None], kinds.depths) + 1)
        size, context = rounds[0].assignment.round_size, float(np.mean([record.context.sum() for record in records]))
        unit = self._cost.plain_seconds(size, context) / size
        predicted = self._predict(rounds, drafted, context, unit)
        measured = predicted[..., -1] * self._slowness(rounds, predicted[..., -1].sum(axis=1) * unit)[:, None]
        # A host may draft deeper than the arm. Then the arm's time is predicted, like that of shallower arms.
        played = (np.arange(len(kinds)) == arms[:, None]) & (depths <= kinds.depths[arms])[..., None]
        spent = np.where(played, measured[..., None], predicted[..., :-1])
        rewards.seen[seen], rewards.earned[seen], rewards.spent[seen] = 1.0, earned[seen], spent[seen]
        return rewards

    def arm_costs(self, round_size: int, context: float) -> ArmCosts:
        """Costs of rounds of `round_size` rows that hold `context` tokens in all."""
        kinds, plain = self._arms, self._cost.plain_seconds(round_size, context)
        costs = ArmCosts(np.ones(len(kinds)), np.zeros(len(kinds)))
        for drafter, name in enumerate(self._drafters):
            arms = (kinds.drafters == drafter) & (kinds.depths > 0)
            depths = kinds.depths[arms].astype(np.float64)
            costs.round[arms] = (
                self._cost.draft_round_seconds(name, round_size, depths, depths * round_size, context) / plain
            )
            costs.catch_up[arms] = self._cost.catch_up_seconds(name, 1.0) * round_size / plain
        return costs

    def _predict(self, rounds: Sequence[PlayedRound], drafted: IntArray, context: float, unit: float) -> FloatArray:
        """[M, B, K + 1] what rows spend, in `unit` seconds, if a round is cut to the depth of each arm; last: uncut."""
        assignment, cost = rounds[0].assignment, self._cost
        size, cuts = assignment.round_size, np.append(self._arms.depths, drafted.max())
        path = np.minimum(drafted[..., None], cuts)
        steps, tokens = path.max(axis=1).astype(np.float64), path.sum(axis=1).astype(np.float64)  # [M, K + 1]
        seconds = [cost.draft_round_seconds(name, size, steps, tokens, context) for name in self._drafters]
        per_token = (np.array(seconds) - size * unit) / np.maximum(tokens, 1.0)  # [drafters, M, K + 1]
        per_token = np.moveaxis(per_token[self._arms.drafters[assignment.arms]], 0, 1)
        spent = np.maximum(per_token * path, 0.0)
        if any(one.record.branches is not None for one in rounds):
            # Nodes next to the longest path take no draft steps, but they are verified.
            side = np.stack([_side_nodes(one.record, cuts) for one in rounds])  # [M, B, K + 1]
            more = side.sum(axis=1)
            longer = cost.verify_curve(size, size + tokens + more, context)
            verify = longer - cost.verify_curve(size, size + tokens, context)
            spent += (verify / np.maximum(more, 1))[:, None] * side
        return np.asarray(1.0 + spent / unit)

    def _slowness(self, rounds: Sequence[PlayedRound], predicted: FloatArray) -> FloatArray:
        """[M] seconds of rounds over those predicted [M] without catching up; 1 where other rows took part."""
        seconds = np.array([one.record.timing.total for one in rounds])
        caught_up = np.array([one.record.caught_up for one in rounds])
        per_token = max((self._cost.catch_up_seconds(name, 1.0) for name in self._drafters), default=0.0)
        slowness = np.clip(seconds / (predicted + per_token * caught_up), 1.0 / _HICCUP, _HICCUP)
        return np.where([one.assignment.alone for one in rounds], slowness, 1.0)


def _side_nodes(record: RoundRecord, cuts: IntArray) -> IntArray:
    """[B, L] nodes of each row's tree within depths [L], beyond those of its longest path."""
    if record.branches is None:
        return np.zeros((len(record.rows), len(cuts)), dtype=np.int64)
    tree = record.branches.tree
    within: IntArray = np.zeros((len(record.rows), len(cuts)), dtype=np.int64)
    np.add.at(within, tree.row, tree.depth[:, None] <= cuts)
    return within - np.minimum(record.drafted[:, None], cuts)


class ArmLedger(Learner):
    """Discounted sums of rewards by context, batch bucket and arm.

    Contexts have up to three levels, as far as the scope goes: all traffic, tasks, requests. A context is read as its
    sums plus those of the next wider level, scaled down to at most `_PRIOR_ROUNDS` rounds of each arm: a new request
    starts from its task, and soon goes by its own rounds. Batch buckets are 1, 2, 3-4, 5-8 ... rows.
    """

    def __init__(self, arms: Arms, scope: Scope, parts: Parts, *, discount: float = 0.993) -> None:
        """`discount`: factor of the sums per round."""
        self.arms, self.scope, self.discount, self.max_rows = arms, scope, discount, parts.max_rows
        self.buckets = batch_bucket(parts.max_rows) + 1
        self._model = RewardModel(arms, parts.cost, parts.drafters)
        self._levels = {"global": 1, "task": 2, "request": 3}[scope]
        # Two contexts per row, in turn: rounds of a row's last request may be recorded while the next one runs.
        sizes = (1, parts.tasks, 2 * parts.max_rows)[: self._levels]
        self.count, self._first = sizes[-1], sum(sizes[:-1])  # contexts of the narrowest level, and their first entry
        self._sums: FloatArray = np.zeros((sum(sizes), self.buckets, len(arms), 6))
        self._state = {"sums.all": self._sums[:1]}
        if scope != "global":
            self._state["sums.task"] = self._sums[1 : 1 + parts.tasks]
        self._task: IntArray = np.arange(self.count) if scope == "task" else np.zeros(self.count, dtype=np.int64)
        # [K, 101] tokens per round of each arm, if every token is accepted with a chance of 0 to 100 percent.
        powers = np.linspace(0.0, 1.0, 101) ** np.arange(1 + int(arms.depths.max()))[:, None]
        self._tokens: FloatArray = powers.cumsum(axis=0)[arms.depths]

    def start(self, row: int, serial: int) -> int | None:
        """Start the context of request number `serial` of a row and return it; None if requests have no contexts."""
        if self.scope != "request":
            return None
        context = row + self.max_rows * (serial % 2)
        self._sums[self._first + context] = 0.0
        return context

    def contexts(self, rows: IntArray, serials: IntArray, tasks: IntArray) -> IntArray:
        """The context [B] of each row, given the serial [B] and task [B] of its request."""
        if self.scope == "task":
            return tasks
        found = np.zeros_like(rows)
        if self.scope == "request":
            found = rows + self.max_rows * (serials % 2)
            self._task[found] = tasks
        return found

    def bucket(self, round_size: int) -> int:
        """The batch bucket of rounds of so many rows."""
        return min(batch_bucket(round_size), self.buckets - 1)

    def add(self, rounds: Sequence[PlayedRound]) -> ContextSums:
        """Add rounds with equal `Assignment.key`.

        Rows of one context share much of what happens in a round, so they count as one observation, their mean.
        """
        assignment = rounds[0].assignment
        rewards = np.stack(self._model.rewards(rounds), axis=-1)
        count, size, arms, _ = rewards.shape
        path = self._path(assignment.contexts)
        entries, inverse = np.unique(path, return_inverse=True)
        belongs = np.zeros((len(entries), size))
        belongs[inverse.reshape(path.shape), np.arange(size)] = 1.0
        summed = (belongs @ rewards.reshape(count, size, -1)).reshape(count, len(entries), arms, 3)
        seen, earned, spent = np.moveaxis(summed, -1, 0)
        earned, spent = earned / np.maximum(seen, 1.0), spent / np.maximum(seen, 1.0)
        moments = (seen > 0, earned, spent, earned * earned, earned * spent, spent * spent)
        sums = np.stack(moments, axis=-1).sum(axis=0)
        bucket = self.bucket(assignment.round_size)
        self._sums[entries, bucket] = self._sums[entries, bucket] * self.discount**count + sums
        narrowest = entries >= self._first
        return ContextSums(entries[narrowest] - self._first, bucket, count, sums[narrowest])

    def estimates(self, contexts: IntArray, round_size: int, context: float, cache_gap: FloatArray) -> ArmEstimates:
        """Estimates for contexts [m] in a round of `round_size` rows that hold `context` tokens in all.

        `cache_gap` [m, drafters]: tokens that each drafter lags behind, the mean of a context's rows. The ratio is
        sum(earned) / sum(spent) with one round of prior. Its error is that of the residuals earned - ratio * spent (the
        delta method).
        """
        sums, costs = self._read(contexts, self.bucket(round_size)), self._model.arm_costs(round_size, context)
        rounds, spent = sums[..., N] + 1.0, sums[..., SPENT] + costs.round
        ratio = (sums[..., EARNED] + self._prior_tokens(sums)) / spent
        squares = sums[..., EARNED2] - 2.0 * ratio * sums[..., CROSS] + ratio**2 * sums[..., SPENT2]
        per_round = spent / rounds
        prior = _PRIOR_DEVIATION**2 * self.arms.depths
        spread = np.sqrt((np.maximum(squares, 0.0) + prior) / rounds) / per_round
        entry = cache_gap[:, self.arms.drafters] * (costs.catch_up / CATCH_UP_ROUNDS)
        staying = per_round / (per_round + entry)
        seen, ratio, error = sums[..., N].copy(), ratio * staying, spread / np.sqrt(rounds) * staying
        if (off := self.arms.off) is not None:
            seen[:, off], ratio[:, off], error[:, off], spread[:, off] = np.inf, 1.0, 0.0, 0.0
        return ArmEstimates(seen, ratio, error, spread, staying, sums[..., N].sum(axis=1))

    def state(self) -> dict[str, FloatArray]:
        """Sums of all traffic and of tasks; those of requests end with them."""
        return self._state

    def _path(self, contexts: IntArray) -> IntArray:
        """[levels, m] entries of contexts and of the wider levels above them, widest first."""
        return np.stack((np.zeros_like(contexts), 1 + self._task[contexts], self._first + contexts))[: self._levels]

    def _read(self, contexts: IntArray, bucket: int) -> FloatArray:
        """[m, K, 6] sums of contexts with what they take from wider levels."""
        levels = self._sums[self._path(contexts), bucket]
        found: FloatArray = levels[0]
        for sums in levels[1:]:
            found = sums + np.minimum(1.0, _PRIOR_ROUNDS / np.maximum(found[..., :1], 1e-9)) * found
        return found

    def _prior_tokens(self, sums: FloatArray) -> FloatArray:
        """[m, K] tokens per round expected of arms before they are seen.

        All tokens have the same acceptance: the one that explains what the next shallower arm of the family earned.
        """
        expected = np.ones(sums.shape[:2])
        for arm in np.argsort(self.arms.depths, kind="stable").tolist():
            below = self.arms.below.item(arm)
            if below >= 0:
                earned = (sums[:, below, EARNED] + expected[:, below]) / (sums[:, below, N] + 1.0)
                expected[:, arm] = np.interp(earned, self._tokens[below], self._tokens[arm])
            elif self.arms.depths[arm] > 0:
                expected[:, arm] = self._tokens[arm, _PRIOR_ACCEPTANCE]
        return expected
