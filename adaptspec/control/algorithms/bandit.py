"""Bandits: play one arm per context for an episode, then choose again by what arms earned."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from adaptspec.arrays import BoolArray, FloatArray, IntArray
from adaptspec.control.algorithms.algorithm import Algorithm, AlgorithmSpec, Choice, Parts, lowered
from adaptspec.control.algorithms.arm_ledger import ArmLedger, Assignment, PlayedRound, Scope
from adaptspec.control.algorithms.arm_rules import ArmChoice, ArmRule, ArmView, Exp3, LinUcb, Thompson, Ucb
from adaptspec.control.algorithms.arms import Arms, ArmSpec, build_arms
from adaptspec.control.algorithms.request_features import RequestFeatures
from adaptspec.control.policy import BatchSignals
from adaptspec.decision import Reason
from adaptspec.rounds import RoundRecord

# An arm that is chosen again is kept for twice as long, up to so many times the dwell.
_MAX_DWELLS = 4
# A deeper arm is playable once the next shallower one of its family was seen in so many discounted rounds.
_SEEN_ENOUGH = 0.5
# Rounds that are kept until they are summed up.
_MAX_BUFFERED = 64


class Episodes:
    """What each context plays, and until when. An arm is kept for `dwell` rounds, longer if it is chosen again.

    Episodes that explore are shorter the more rows a context has, and half as long where they follow off: another arm
    next to a drafting one loses little, and differs by less than the noise of a few rounds.
    """

    def __init__(self, contexts: int, dwell: int, beat: int, off: int | None) -> None:
        """Episodes end on multiples of `beat` rounds, so that many contexts choose in the same round."""
        self._dwell, self._beat, self._off = dwell, beat, -1 if off is None else off
        self.arms: IntArray = np.full(contexts, -1, dtype=np.int64)
        self.reasons: IntArray = np.zeros(contexts, dtype=np.int64)
        self.memo: FloatArray = np.zeros((contexts, 0))
        self.began: IntArray = np.zeros(contexts, dtype=np.int64)
        self._length: IntArray = np.zeros(contexts, dtype=np.int64)
        self.ends: IntArray = np.zeros(contexts, dtype=np.int64)

    def start(self, context: int) -> None:
        """The context belongs to a new request."""
        self.arms[context], self.ends[context], self._length[context] = -1, 0, 0

    def begin(self, contexts: IntArray, choice: ArmChoice, reasons: IntArray, rows: IntArray, now: int) -> None:
        """Begin episodes of contexts [m] that have `rows` [m] rows each."""
        last, dwell = self.arms[contexts], self._dwell
        again = np.clip(2 * self._length[contexts], dwell, _MAX_DWELLS * dwell)
        full = np.where(last == self._off, max(1, dwell // 2), dwell)
        exploring = np.ceil(full / np.sqrt(rows)).astype(np.int64)
        length = np.where(choice.exploring, exploring, np.where(last == choice.arms, again, dwell))
        self.ends[contexts] = -(-(now + length) // self._beat) * self._beat
        self._length[contexts], self.began[contexts] = length, now
        self.arms[contexts], self.reasons[contexts] = choice.arms, reasons
        if self.memo.shape[1] != choice.memo.shape[1]:
            self.memo = np.zeros((len(self.memo), choice.memo.shape[1]))
        self.memo[contexts] = choice.memo


class Bandit(Algorithm):
    """Plays an arm per context for an episode, credits rounds to arms, and has a rule choose the next arm.

    Rewards and their sums are `ArmLedger`'s, rules are in `arm_rules`. A round is credited to the decision that it ran
    by, however late its record comes.
    """

    def __init__(self, rule: ArmRule, ledger: ArmLedger, features: RequestFeatures, *, dwell: int = 8) -> None:
        """`dwell`: rounds of an episode."""
        self.max_depth = int(ledger.arms.depths.max())
        self._arms, self._rule, self._ledger, self._features = ledger.arms, rule, ledger, features
        beat = max(1, dwell // 2) if ledger.scope == "request" else 1
        self._episodes = Episodes(ledger.count, dwell, beat, ledger.arms.off)
        self._serials: IntArray = np.zeros(ledger.max_rows, dtype=np.int64)  # requests that each row has had
        self._limits: IntArray = np.zeros(ledger.max_rows, dtype=np.int64)  # the highest limit of each row's request
        self._rounds = 0
        self._played: list[PlayedRound] = []

    def start(self, row: int) -> None:
        self._settle()
        self._serials[row] += 1
        self._limits[row] = 0
        self._features.start(row)
        context = self._ledger.start(row, int(self._serials[row]))
        if context is not None:
            self._episodes.start(context)
            self._rule.start(context)

    def choose(self, signals: BatchSignals) -> Choice:
        self._rounds += 1
        rows, episodes = signals.rows, self._episodes
        # A request that nears its end has low limits. The arm chosen then is kept for those after it, so it must not be
        # chosen by these limits.
        self._limits[rows] = np.maximum(self._limits[rows], signals.limits)
        contexts = self._ledger.contexts(rows, self._serials[rows], signals.tasks)
        over = episodes.ends[contexts] <= self._rounds
        if over.any():
            self._settle()
            self._begin_episodes(np.unique(contexts[over]), contexts, signals)
        arms = episodes.arms[contexts]
        drafter = self._arms.drafters[arms]
        assignment = Assignment(
            rows=rows,
            serials=self._serials[rows],
            contexts=contexts,
            arms=arms,
            cache_gap=signals.cache_gap[drafter, np.arange(len(rows))],
            memo=episodes.memo[contexts],
            round_size=signals.round_size,
            alone=not signals.other_rows and not signals.prefill_tokens,
        )
        depths = np.minimum(self._arms.depths[arms], signals.limits)
        stop = self._arms.stop_table(arms, depths)
        return Choice(depths, episodes.reasons[contexts], drafter=drafter, stop=stop, memo=assignment)

    def learn(self, record: RoundRecord, memo: object = None) -> None:
        """See `Algorithm.learn`. Rounds decided without this algorithm teach stop rules only."""
        for rule in self._arms.stop_rules:
            rule.learn(record)
        if not isinstance(memo, Assignment):
            return
        # `choose` counts the first round of each decision; a decision may serve several.
        self._rounds += memo.learned > 0
        memo.learned += 1
        if np.array_equal(memo.rows, record.rows):  # else some of the rows did not run
            self._played.append(PlayedRound(memo, record))
        if len(self._played) >= _MAX_BUFFERED:
            self._settle()

    def state(self) -> dict[str, FloatArray]:
        self._settle()
        return {**self._ledger.state(), **self._rule.state()}

    def _begin_episodes(self, due: IntArray, contexts: IntArray, signals: BatchSignals) -> None:
        """Choose arms for contexts that are `due` [m], ascending, of the rows' `contexts` [B]."""
        arms, episodes = self._arms, self._episodes
        belongs = contexts == due[:, None]  # [m, B]
        rows = belongs.sum(axis=1)
        shares = belongs / rows[:, None]
        cache_gap = shares @ signals.cache_gap.T
        estimates = self._ledger.estimates(due, signals.round_size, float(signals.context.sum()), cache_gap)
        view = ArmView(
            **vars(estimates),
            contexts=due,
            bucket=self._ledger.bucket(signals.round_size),
            incumbent=episodes.arms[due],
            rounds=self._rounds - episodes.began[due],
            playable=playable(estimates.seen, arms, (belongs * self._limits[signals.rows]).max(axis=1)),
            features=self._features.of_contexts(signals, shares),
        )
        choice = self._rule.choose(view)
        drafting = np.where(choice.exploring, int(Reason.EXPLORE), int(Reason.POLICY))
        reasons = np.where(arms.depths[choice.arms] > 0, drafting, int(Reason.OFF))
        episodes.begin(due, choice, reasons, rows, self._rounds)

    def _settle(self) -> None:
        """Sum up the rounds since the last time."""
        for _, group in itertools.groupby(self._played, key=lambda one: one.assignment.key):
            rounds = list(group)
            assignment = rounds[0].assignment
            running = self._serials[assignment.rows] == assignment.serials
            for one in rounds:
                self._features.learn(one.record, running)
            _, first = np.unique(assignment.contexts, return_index=True)
            self._rule.observe(self._ledger.add(rounds), assignment.memo[first])
        self._played.clear()


def playable(seen: FloatArray, arms: Arms, limits: IntArray) -> BoolArray:
    """[m, K] which arms contexts with these limits [m] may play, given the rounds `seen` [m, K] of each arm.

    Arms within the limit, if there are any. Of a family, no more than one arm deeper than those that were seen: a deep
    draft that is wrong costs most.
    """
    fits = arms.depths <= limits[:, None]
    fits |= ~fits.any(axis=1, keepdims=True)
    from_below = fits & ((arms.below < 0) | (seen[:, arms.below] >= _SEEN_ENOUGH))
    return np.where(from_below.any(axis=1, keepdims=True), from_below, fits)


class BanditSpec(AlgorithmSpec):
    """`choose:` of every bandit. A subclass adds `algorithm`, the settings of its rule, and `rule`."""

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
        ledger = ArmLedger(build_arms(self.arms, parts), self.scope, parts, discount=self.discount)
        features = RequestFeatures(parts.max_rows, parts.tasks)
        return Bandit(self.rule(ledger, features), ledger, features, dwell=self.dwell_rounds)

    def rule(self, ledger: ArmLedger, features: RequestFeatures) -> ArmRule:
        """The rule that chooses among the arms."""
        raise NotImplementedError

    def default_drafters(self, available: Sequence[str]) -> Sequence[str]:
        """The first drafter, unless arms are named: they may name any."""
        return available[:1] if self.arms is None else available

    def kept_to(self, depths: Sequence[int]) -> AlgorithmSpec:
        if self.arms is None:
            return self
        arms = [arm.model_copy(update={"depth": lowered(arm.depth, depths)}) for arm in self.arms]
        return self.model_copy(update={"arms": list({repr(arm): arm for arm in arms}.values())})


class UcbSpec(BanditSpec):
    """`choose:` of upper confidence bounds."""

    algorithm: Literal["ucb"]
    optimism: float = Field(default=0.3, ge=0.0, le=10.0, description="How much uncertainty counts in an arm's favour.")

    def rule(self, ledger: ArmLedger, features: RequestFeatures) -> Ucb:  # noqa: ARG002 - see `BanditSpec`
        return Ucb(self.optimism)


class ThompsonSpec(BanditSpec):
    """`choose:` of Thompson sampling."""

    algorithm: Literal["thompson"]
    scale: float = Field(default=1.0, gt=0.0, le=10.0, description="Widens (above 1) or narrows the posterior.")
    seed: int = Field(default=0, ge=0, description="Of the random draws.")

    def rule(self, ledger: ArmLedger, features: RequestFeatures) -> Thompson:  # noqa: ARG002 - likewise
        return Thompson(self.scale, self.seed)


class Exp3Spec(BanditSpec):
    """`choose:` of exponential weights."""

    algorithm: Literal["exp3"]
    rate: float = Field(default=6.0, gt=0.0, le=100.0, description="How sharply weights follow goodput.")
    implicit: float = Field(default=0.1, gt=0.0, le=1.0, description="Implicit exploration: less variance, more bias.")
    seed: int = Field(default=0, ge=0, description="Of the random draws.")

    def rule(self, ledger: ArmLedger, features: RequestFeatures) -> Exp3:  # noqa: ARG002 - likewise
        return Exp3(ledger, self.rate, self.implicit, dwell=self.dwell_rounds, seed=self.seed)


class LinUcbSpec(BanditSpec):
    """`choose:` of LinUCB."""

    algorithm: Literal["linucb"]
    scope: Scope = Field(default="request", description="Whose features an arm is chosen by.")
    optimism: float = Field(
        default=0.25,
        ge=0.0,
        le=10.0,
        description="Weight of the confidence bound, which grows with the logarithm of rounds; 0.25 is usual.",
    )
    ridge: float = Field(default=3.0, gt=0.0, le=1000.0, description="Weight of the prior, in rounds.")

    def rule(self, ledger: ArmLedger, features: RequestFeatures) -> LinUcb:
        return LinUcb(ledger, features, self.optimism, self.ridge)
