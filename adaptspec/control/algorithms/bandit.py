"""What is around every bandit algorithm: episodes, and outcomes by their decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from pydantic import Field

from adaptspec.control.algorithms.algorithm import Algorithm, AlgorithmSpec, Choice, Parts, lowered
from adaptspec.control.algorithms.arm_selection import ArmSelector, Pick, View, enterable, estimates
from adaptspec.control.algorithms.arms import Arms, ArmSpec, build_arms
from adaptspec.control.algorithms.ledger import Ledger, Played, Rewarder, Scope
from adaptspec.control.policy import BatchSignals, Pending
from adaptspec.types import FloatArray, IntArray, Reason, RoundRecord

# An arm that is picked again is kept for twice as long, up to so many times the dwell: what is settled costs no time.
_LONGEST = 4
# Rounds that the cost of catching up is spread over: that of two to four episodes. One round too few keeps a lagging
# drafter off where it pays, too many switches it on and off for nothing.
_HORIZON = 32.0


class BanditSpec(AlgorithmSpec):
    """`choose:` of every bandit. An algorithm adds its own fields and `_index`."""

    takes_tiers: ClassVar[bool] = True
    takes_drafters: ClassVar[bool] = True
    default_tiers: ClassVar[tuple[int, ...]] = (0, 1, 3, 7)

    arms: list[ArmSpec] | None = Field(
        default=None, min_length=1, max_length=32, description="What to choose among; absent: one arm per tier."
    )
    scope: Scope = Field(default="task", description="Whose record an arm is chosen by.")
    dwell_rounds: int = Field(default=8, ge=1, le=1000, description="Rounds an arm is kept before the next choice.")
    discount: float = Field(default=0.993, gt=0.5, le=1.0, description="Per round: how fast what was seen fades.")

    def build(self, parts: Parts) -> Bandit:
        arms = build_arms(self.arms, parts)
        ledger = Ledger(self.scope, parts.max_rows, parts.tasks, len(arms), discount=self.discount)
        return Bandit(arms, self._index(arms, ledger), ledger, parts, dwell=self.dwell_rounds)

    def default_drafters(self, here: Sequence[str]) -> Sequence[str]:
        """One arm per tier uses the first drafter only; arms may name any."""
        return here[:1] if self.arms is None else here

    def kept_to(self, depths: Sequence[int]) -> AlgorithmSpec:
        if self.arms is None:
            return self
        arms = [
            one if one.depth is None else one.model_copy(update={"depth": lowered(one.depth, depths)})
            for one in self.arms
        ]
        return self.model_copy(update={"arms": list({repr(one): one for one in arms}.values())})

    def _index(self, arms: Arms, ledger: Ledger) -> ArmSelector:
        raise NotImplementedError(f"{type(self).__name__} says which algorithm it is")


class Episodes:
    """Arms are locked for `dwell` rounds, longer if picked again; those explored from off for half. [contexts] each.

    Coming from an arm that drafts, another one loses little and is told by noisier rounds: a full dwell says more.
    """

    def __init__(self, contexts: int, dwell: int, beat: int, off: int | None) -> None:
        """Episodes end on multiples of `beat` rounds, so that those of many contexts end together."""
        self._dwell, self._beat, self._off = dwell, beat, -1 if off is None else off
        self.due, self.began, self._length = (np.zeros(contexts, dtype=np.int64) for _ in range(3))
        self.arms: IntArray = np.full(contexts, -1, dtype=np.int64)

    def start(self, context: int, now: int) -> None:
        self.arms[context], self.due[context], self._length[context] = -1, now, 0

    def over(self, contexts: IntArray, now: int) -> IntArray:
        """Those of the contexts, ascending, whose episode is over."""
        return np.unique(contexts[self.due[contexts] <= now])

    def begin(self, contexts: IntArray, pick: Pick, now: int, rows: FloatArray) -> None:
        """Begin episodes, each context with `rows` rows: many rows tell in few rounds whether an arm is any good."""
        old, dwell = self.arms[contexts], self._dwell
        again = np.clip(2 * self._length[contexts], dwell, _LONGEST * dwell)
        probe = np.ceil(np.where(old == self._off, max(1, dwell // 2), dwell) / np.sqrt(rows)).astype(np.int64)
        length = np.where(pick.exploring, probe, np.where(old == pick.arms, again, dwell))
        self.due[contexts] = -(-(now + length) // self._beat) * self._beat
        self._length[contexts], self.began[contexts], self.arms[contexts] = length, now, pick.arms


@dataclass(eq=False)
class _Plan:
    """Arms of a batch, until the first episode among them ends; and the rounds that played them."""

    rows: IntArray
    size: int
    until: int
    contexts: IntArray
    arms: IntArray
    bucket: int
    memo: FloatArray  # [B, X] see `Pick.memo`
    choice: Choice
    played: list[Played] = field(default_factory=list)

    def serves(self, now: int, signals: BatchSignals) -> bool:
        same = self.rows is signals.rows or self.rows.tobytes() == signals.rows.tobytes()
        return same and now < self.until and self.size == signals.round_size


class Bandit(Algorithm):
    """Plays an arm per context for an episode, then sums up what it earned and asks the algorithm for the next.

    Reward is goodput as a ratio of sums: tokens emitted over seconds attributed to the row, in units of plain decoding
    at the same batch size, so off is exactly 1 (see `Rewarder`). A round credits every arm that it says something
    about, and none that was not really run. An arm whose drafter lags is charged for catching up when arms are
    compared, spread over `_HORIZON` rounds.

    An outcome is credited to the decision whose number it bears, however late it comes. Between episodes a round costs
    a note and a look-up; what a plan's rounds earned is settled at once.
    """

    def __init__(self, arms: Arms, index: ArmSelector, ledger: Ledger, parts: Parts, *, dwell: int = 8) -> None:
        self._arms, self._index, self._ledger = arms, index, ledger
        self.max_depth = int(arms.depths.max())
        beat = max(1, dwell // 2) if ledger.scope == "request" else 1
        self._episodes = Episodes(ledger.count, dwell, beat, arms.off)
        self._rewarder = Rewarder(arms, parts.cost, parts.drafters)
        self._why: IntArray = np.zeros(ledger.count, dtype=np.int64)  # the reason of each context's arm
        self._memo: FloatArray = np.zeros((ledger.count, 0))
        self._room: IntArray = np.zeros(parts.max_rows, dtype=np.int64)  # the highest limit of each row's request
        self._now = 0
        self._plan: _Plan | None = None
        self._pending: Pending[tuple[_Plan, BatchSignals]] = Pending()
        self._unsettled: list[_Plan] = []

    def start(self, row: int) -> None:
        self._settle()
        context = self._ledger.start(row)
        if self._ledger.scope == "request":
            self._episodes.start(context, self._now)
            self._index.start(context)
        self._room[row], self._plan = 0, None

    def choose(self, signals: BatchSignals) -> Choice:
        self._now += 1
        plan = self._plan
        if plan is None or not plan.serves(self._now, signals):
            plan = self._plan = self._replan(signals)
        choice = plan.choice
        choice = self._arms.play(choice, plan.arms, signals) if self._arms.split else choice.within(signals.limits)
        self._pending.put(signals.number, (plan, signals))
        return choice

    def learn(self, record: RoundRecord) -> None:
        """See `Algorithm.learn`. A round that was decided without this algorithm teaches only stop rules."""
        if self._arms.split:
            self._arms.learn(record)
        pending = self._pending.take(record.decision)
        if pending is None:
            return
        plan, signals = pending
        if plan.rows.tobytes() != record.rows.tobytes():  # some of them did not run
            return
        if not plan.played:
            self._unsettled.append(plan)
        cache_gap = signals.cache_gap[self._arms.drafters[plan.arms], np.arange(len(plan.arms))]
        plan.played.append(Played(cache_gap, not signals.beside and not signals.prefill_tokens, record))

    def state(self) -> dict[str, FloatArray]:
        self._settle()
        return {**self._ledger.state(), **self._index.state()}

    def _replan(self, signals: BatchSignals) -> _Plan:
        contexts = self._ledger.of(signals.rows, signals.tasks)
        # A request that nears its end has little room, but the arm chosen then is kept for those after it.
        self._room[signals.rows] = np.maximum(self._room[signals.rows], signals.limits)
        bucket = self._ledger.bucket(signals.round_size)
        due = self._episodes.over(contexts, self._now)
        if len(due):
            self._settle()
            self._pick(due, contexts, bucket, signals)
        arms = self._episodes.arms[contexts]
        choice = Choice(self._arms.depths[arms], self._why[contexts], drafter=self._arms.drafters[arms])
        until, memo = int(self._episodes.due[contexts].min()), self._memo[contexts]
        return _Plan(signals.rows, signals.round_size, until, contexts, arms, bucket, memo, choice)

    def _pick(self, due: IntArray, contexts: IntArray, bucket: int, signals: BatchSignals) -> None:
        arms, episodes, size = self._arms, self._episodes, signals.round_size
        belongs = contexts == due[:, None]  # [m, B]
        shares = belongs / belongs.sum(axis=1, keepdims=True)
        costs, catch_up = self._rewarder.arm_costs(size, float(signals.context.sum()))
        entry = (shares @ signals.cache_gap.T)[:, arms.drafters] * (catch_up / _HORIZON)
        known = estimates(self._ledger.read(due, bucket), arms, costs, entry)
        view = View(
            contexts=due,
            bucket=bucket,
            incumbent=episodes.arms[due],
            rounds=self._now - episodes.began[due],
            **known,
            costs=costs,
            entry=entry,
            playable=enterable(known["seen"], arms, (belongs * self._room[signals.rows]).max(axis=1)),
            features=self._ledger.describe(signals, shares),
        )
        pick = self._index.pick(view)
        if self._memo.shape[1] != pick.memo.shape[1]:
            self._memo = np.zeros((len(self._memo), pick.memo.shape[1]))
        self._memo[due] = pick.memo
        drafting = np.where(pick.exploring, int(Reason.EXPLORE), int(Reason.POLICY))
        self._why[due] = np.where(arms.depths[pick.arms] > 0, drafting, int(Reason.OFF))
        episodes.begin(due, pick, self._now, belongs.sum(axis=1))

    def _settle(self) -> None:
        for plan in self._unsettled:
            self._ledger.note(plan.rows, plan.contexts, [one.record for one in plan.played])
            told = self._rewarder.rewards(plan.arms, plan.size, plan.played)
            _, first = np.unique(plan.contexts, return_index=True)
            more = sum(one.record.stands_for - 1 for one in plan.played)
            self._index.observe(self._ledger.add(plan.contexts, plan.bucket, told, more), plan.memo[first])
            plan.played = []
        self._unsettled.clear()
