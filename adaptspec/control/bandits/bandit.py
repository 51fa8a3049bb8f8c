"""The chooser around every bandit algorithm: contexts, episodes, rewards and what nested policies need.

Knows when an arm is due and what it earned; which one comes next is the learner's affair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from adaptspec.control.bandits.arms import Arms
from adaptspec.control.bandits.contexts import Contexts, Scope
from adaptspec.control.bandits.episodes import Episodes
from adaptspec.control.bandits.estimates import enterable, estimate
from adaptspec.control.bandits.features import Features
from adaptspec.control.bandits.lanes import Lanes
from adaptspec.control.bandits.learner import Learner, View
from adaptspec.control.bandits.ledger import Ledgers, Memory, lot_of
from adaptspec.control.bandits.notes import Note, Notes, Played, Rounds
from adaptspec.control.bandits.rewards import Rewarder
from adaptspec.control.choosers.chooser import Choice, Parts
from adaptspec.control.learned import under
from adaptspec.control.policy import BatchSignals, OfferWatcher
from adaptspec.errors import StateError
from adaptspec.types import FloatArray, IntArray, Provenance, Reason, RoundRecord


@dataclass(frozen=True)
class BanditSettings:
    """What all algorithms have in common. `weight`: rounds that a context believes the level above it, at most."""

    scope: Scope = "task"
    dwell: int = 8
    memory: Memory = field(default_factory=Memory)
    weight: float = 16.0
    horizon: float = 32.0  # rounds that catching up is spread over when arms are compared


class Bandit:
    """Plays an arm per context for an episode, then sums up what it earned and asks the learner for the next.

    Reward is goodput as a ratio of sums: tokens emitted over seconds attributed to the row, in units of plain
    decoding at the same batch size, so off is exactly 1 (see `Rewarder`). A round credits every arm that it says
    something about, and none that was not really run. An arm whose drafter lags is charged for catching up when
    arms are compared, spread over `horizon` rounds.

    Drafters that are scored while they do not run (n-gram lookup) tell of their arms in every round, for free: these
    need no exploring, and a request on which lookup begins to pay is noticed at once.

    Between episodes a round costs a note and a look-up; all contexts that are due are settled together.
    """

    def __init__(self, arms: Arms, learner: Learner, parts: Parts, settings: BanditSettings = BanditSettings()) -> None:
        self._arms, self._learner, self._settings = arms, learner, settings
        self.max_depth = int(arms.depths.max())
        self._contexts = Contexts(settings.scope, parts.max_rows, parts.tasks)
        count = self._contexts.count
        probe = max(1, settings.dwell // 2)
        beat = probe if settings.scope == "request" else 1
        self._episodes = Episodes(count, settings.dwell, probe, beat, arms.off)
        self._ledgers = Ledgers(
            self._contexts.sizes, self._contexts.buckets, len(arms), settings.memory, settings.weight
        )
        self._rewarder = Rewarder(arms, parts.cost, parts.drafters)
        self._features = Features(parts.max_rows, parts.tasks) if learner.uses_features else None
        self._worth: FloatArray = np.full(count, np.nan)  # what was expected of each context's arm
        self._seen_with: FloatArray = np.zeros((count, self._features.count if self._features else 0))
        # [exploring, K]
        self._reasons: IntArray = np.where(
            arms.depths > 0, [[int(Reason.POLICY)], [int(Reason.EXPLORE)]], int(Reason.OFF)
        )
        self._several = bool(arms.drafters.any())
        self._lanes = Lanes(arms) if arms.opaque.any() or any(arms.stops) else None
        self._nested = [nested for nested in arms.policies if nested is not None]
        nested_policies = (nested.policy for nested in self._nested)
        self._offered = [p for p in nested_policies if isinstance(p, OfferWatcher) and p.watches_offers]
        self._notes = Notes()
        # What drafters had to catch up of each row when it was last chosen for, where others choose for some rows.
        self._lag: IntArray = np.zeros((max(1, len(parts.drafters)), parts.max_rows), dtype=np.int64)
        self._last: BatchSignals | None = None
        self._room: IntArray = np.zeros(parts.max_rows, dtype=np.int64)  # the highest limit of each row's request
        # The arm last chosen by a request of each task, to begin with: choosing for each new request alone costs time.
        self._latest: IntArray = np.full(parts.tasks, -1, dtype=np.int64)
        self._now = 0
        self._plan: _Plan | None = None
        self._round: tuple[_Plan, BatchSignals, IntArray] | None = None  # and the depths chosen

    @property
    def watches_offers(self) -> bool:
        """See `OfferWatcher`: a nested policy may."""
        return bool(self._offered)

    @property
    def looking(self) -> bool:
        """See `OfferWatcher`. Arms of its own are scored in every round, which ends where nobody looks."""
        return bool(self._arms.ladder) or any(policy.looking for policy in self._offered)

    def start(self, row: int, task: int) -> None:
        """See `Chooser.start`."""
        context = self._contexts.start(row, task)
        if self._contexts.scope == "request":
            if self._notes.tell_of(context):
                self._learn_notes()
            self._ledgers.forget(self._contexts.first["request"] + context)
            self._episodes.start(context, self._now, int(self._latest[task]))
            self._learner.start(context)
            self._worth[context] = np.nan
        if self._features is not None:
            self._features.start(row)
        for nested in self._nested:
            nested.policy.start(row, task)
        self._room[row] = 0
        self._plan = None

    def finish(self, row: int) -> None:
        """What the row taught is learned with the next episode's end."""
        for nested in self._nested:
            nested.policy.finish(row)

    def choose(self, signals: BatchSignals) -> Choice:
        """See `Chooser.choose`."""
        self._now += 1
        plan = self._plan
        if plan is None or not plan.serves(self._now, signals):
            if signals.beside and self._last is not None:
                self._keep_lag(self._last)
            plan = self._plan = self._replan(signals)
        self._last, choice = signals, plan.choice
        if self._lanes is None:
            choice = choice.within(signals.limits)
        else:
            choice = self._lanes.choose(choice, plan.played.arms, signals)
        self._round = plan, signals, choice.depths
        return choice

    def learn(self, record: RoundRecord) -> None:
        """See `Chooser.learn`. A round that was decided without this chooser teaches only nested policies."""
        if self._lanes is not None:
            self._lanes.learn(record)
        if self._round is None:
            return
        (plan, signals, wished), self._round = self._round, None
        if self._features is not None:
            self._features.learn(record)
        if not self._notes.has_room(len(record.rows)):
            self._learn_notes()
        if record.rows is signals.rows or record.rows.tobytes() == plan.rows:
            played, drafter = plan.played, plan.choice.drafter
            lag = signals.lag[0] if drafter is None else signals.lag[drafter, np.arange(len(drafter))]
        else:  # as an arm of another policy, which chose for some of the rows and learns from all
            played, wished = self._stand_for(record.rows, plan.played.bucket), record.depths
            self._keep_lag(signals)
            lag = self._lag[self._arms.drafters[played.arms], record.rows]
        alone = not signals.beside and not signals.prefill_tokens
        self._notes.add(Note(played, wished, lag, record, signals.round_size, alone))

    def learned(self) -> dict[str, FloatArray]:
        """Sums per arm of all traffic and of tasks, what the algorithm adds, and what nested policies have learned."""
        if self._notes.count:
            self._learn_notes()
        known = {**self._ledgers.learned(), **self._learner.learned()}
        for nested in self._nested:
            known.update({f"{nested.name}/{name}": value for name, value in nested.policy.learned().items()})
        return known

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        before = self.learned()
        if set(learned) != set(before):
            missing = sorted(set(before) ^ set(learned))
            raise StateError(f"{missing[0]!r} does not fit: this state is of another algorithm or of other arms")
        try:
            self._take_over(learned)
        except StateError:
            self._take_over(before)
            raise
        self._plan = None

    def _take_over(self, learned: Mapping[str, FloatArray]) -> None:
        self._ledgers.restore(learned)
        self._learner.restore(learned)
        for nested in self._nested:
            nested.policy.restore(under(f"{nested.name}/", learned))

    def _replan(self, signals: BatchSignals) -> _Plan:
        contexts, episodes = self._contexts.of(signals.rows), self._episodes
        # A request that nears its end has little room, but the arm chosen then is kept for those after it.
        self._room[signals.rows] = np.maximum(self._room[signals.rows], signals.limits)
        bucket = self._contexts.bucket(signals.round_size)
        due = episodes.due(contexts, self._now, bucket)
        if len(due):
            if len(due) > 1 and self._contexts.scope != "request":
                due = np.unique(due)
            if self._notes.count and (episodes.arms[due] >= 0).any():
                self._learn_notes()
            self._pick(due, contexts, bucket, signals)
        played = self._stand_for(signals.rows, bucket)
        arms = played.arms
        choice = Choice(
            self._arms.depths[arms],
            self._reasons[episodes.exploring[contexts].view(np.int8), arms],
            drafter=self._arms.drafters[arms] if self._several else None,
            provenance=Provenance(arms, episodes.propensities[contexts], contexts, self._worth[contexts]),
        )
        return _Plan(signals.rows.tobytes(), signals.round_size, episodes.end(contexts), choice, played)

    def _keep_lag(self, signals: BatchSignals) -> None:
        self._lag[:, signals.rows] = signals.lag[: len(self._lag)]

    def _stand_for(self, rows: IntArray, bucket: int) -> Played:
        contexts = self._contexts.of(rows)
        return Played(contexts, self._contexts.tasks[rows], self._episodes.arms[contexts], bucket)

    def _pick(self, due: IntArray, contexts: IntArray, bucket: int, signals: BatchSignals) -> None:
        size, context = signals.round_size, float(signals.context.sum())
        belongs = contexts == due[:, None]  # [m, B]
        count = belongs.sum(axis=1).astype(np.float64)
        costs = self._rewarder.arm_costs(size, context)
        entry = np.zeros((len(due), len(self._arms)))
        if signals.lag.any():
            lag = (belongs @ signals.lag[: len(self._lag)].T) / count[:, None]  # [m, drafters]
            entry = lag[:, self._arms.drafters] * (self._rewarder.catch_up(size, context) / self._settings.horizon)
        if self._features is not None:
            self._seen_with[due] = self._features.of(signals, self._contexts.tasks[signals.rows], contexts, due)
        sums = self._ledgers.read(self._contexts.path(due, self._contexts.task_of(due)), bucket)
        estimates = estimate(sums, self._arms, costs, entry)
        saved = self._episodes.saved(due, self._now)
        incumbent = self._episodes.arms[due]
        new = incumbent < 0
        pick = self._learner.pick(
            View(
                due,
                bucket,
                incumbent,
                self._episodes.rounds(due, self._now),
                estimates,
                costs,
                entry,
                enterable(estimates.seen, self._arms, np.where(belongs, self._room[signals.rows], 0).max(axis=1)),
                new | (saved >= 1.0),
                new | (saved >= 2.0),
                self._seen_with[due],
            )
        )
        self._worth[due] = estimates.ratio[np.arange(len(due)), pick.arms]
        self._episodes.begin(due, pick, self._now, bucket, count)
        if self._contexts.scope == "request":
            self._latest[self._contexts.task_of(due)] = np.where(pick.exploring, incumbent, pick.arms)

    def _learn_notes(self) -> None:
        rounds = self._notes.rounds()
        if rounds.drafted.any() or self._nested:
            told = self._rewarder.rewards(rounds)
        else:
            told = np.zeros((len(rounds.arms), len(self._arms), 3))
        if self._arms.off is not None:
            # Nothing is earned that was not known, but time goes by.
            told[rounds.arms == self._arms.off, self._arms.off, 0] = 1.0
        buckets = rounds.bucket[rounds.number]
        path = self._contexts.path(rounds.contexts, rounds.tasks)
        at, known = self._with_scores(rounds, told)
        lot = lot_of(known, rounds.number[at], path[:, at], buckets[at])
        surprising = self._ledgers.add(lot)
        # Algorithms weigh what they observe by the chance to draw it, or by features: scores come whatever is drawn.
        lot = lot if len(known) == len(told) else lot_of(told, rounds.number, path, buckets)
        own = lot.since(self._contexts.first[self._contexts.level])
        self._learner.observe(own, self._seen_with[own.contexts], surprising[-len(own.contexts) :])
        self._notes.clear()

    def _with_scores(self, rounds: Rounds, told: FloatArray) -> tuple[IntArray, FloatArray]:
        """What was told, followed by what drafters say that were scored; and which of the rounds each row is of."""
        at, found = [np.arange(len(told))], [told]
        for drafter in self._rewarder.drafting:
            scores = self._notes.scores(drafter)
            if scores is not None:
                at.append(scores.at)
                found.append(self._rewarder.scored(rounds, drafter, scores))
        return (at[0], told) if len(at) == 1 else (np.concatenate(at), np.concatenate(found))


@dataclass(frozen=True)
class _Plan:
    """Arms of this batch, until the first episode among them ends."""

    rows: bytes
    size: int
    until: int
    choice: Choice
    played: Played

    def serves(self, now: int, signals: BatchSignals) -> bool:
        return now < self.until and self.size == signals.round_size and self.rows == signals.rows.tobytes()
