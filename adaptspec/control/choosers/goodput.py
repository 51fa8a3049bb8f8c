"""The default: the depths of the whole batch, chosen jointly for the most tokens per second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from pydantic import Field

from adaptspec.control.arrays import number
from adaptspec.control.choosers.as_played import as_played
from adaptspec.control.choosers.chooser import Choice, Outlook
from adaptspec.control.choosers.estimates import Estimates, EstimateSettings
from adaptspec.control.choosers.planning import Market, Plan, best_plan
from adaptspec.control.choosers.standing import MANY, BatchPlan, Newcomers, SeatedOutlook, Seats, Wishes, asked
from adaptspec.control.choosers.tryouts import Allowance
from adaptspec.control.cost import CostTable
from adaptspec.control.policy import BatchSignals
from adaptspec.control.schema import Part
from adaptspec.control.signals import SignalSettings
from adaptspec.types import BoolArray, FloatArray, IntArray, Reason, RoundRecord

# Drafts that say what a drafter is worth at first.
_KNOWN = 24
# Share of a round that catching up may take until then.
_ADVANCE = 0.25
# Rounds that the first plan of a batch serves, halved: if it was made for this batch, and if for another of its kind.
_SOON, _LATER = 1, 4
# Rounds, at most, after which the first plan of a new row is no longer good for the next: if it is off, of which a try
# that succeeds tells sooner, and if it drafts. Where requests are short it is all the plan they have.
_FRESH, _FRESH_DRAFTING = 512, 16
# Rounds for which new rows of a task are judged alike.
_NEWCOMERS_SERVE = 32
# Rounds in which what rounds cost is found out.
_COSTS_SETTLE = 64
# Batches of so many rows look for tries every so many rounds.
_LARGE, _TRIES_EVERY = 32, 8
# Rounds for which a choice stands at most, unasked.
_STANDS = 8


@dataclass(frozen=True)
class GoodputSettings:
    """`tiers`: depths allowed beside 0. `stops`: a stop rule will cut drafts, so depths are caps that leave it room."""

    tiers: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    drafter: str = "draft-model"
    signals: SignalSettings = field(default_factory=SignalSettings)
    stops: bool = True
    horizon_rounds: float = 32.0  # see `EstimateSettings`, as for optimism
    optimism: float = 0.1
    tryouts: float = 0.01  # share of time that may be lost on trying rows that are off
    rest: int = 0  # rounds between tries in vain, see `Allowance`
    replan_rounds: int = 16  # a plan serves so many rounds at most, four times as many where it is off

    @property
    def estimates(self) -> EstimateSettings:
        """What of it estimates rest on."""
        return EstimateSettings(self.tiers, self.drafter, self.signals, self.horizon_rounds, self.optimism)


class Goodput:
    """argmax over depths of (B + sum of survival of the drafted tokens) / T(draft steps, rows per step, verify tokens).

    Survival is the product of the row's conditional acceptances, shrunk towards its task and all traffic. T charges
    draft steps, the verify pass, the overhead and the catch-up of a lagging draft cache. Off is the empty choice.

    Exploration is upward only: a round at depth d says everything about smaller depths, nothing about larger ones.
    Optimism is added where little was seen, and fades as counts grow. Rows that are off try one token now and then, on
    an allowance that bounds what this may cost; a new request is tried first, since it may differ from the last. Large
    batches try several rows every eighth round.

    With a stop rule the depth is a cap: the deepest position the rule could still reach on a run of sure tokens.

    Regimes: right wherever costs can be measured; adapts per request. Replans when the batch changes or enough rounds
    were learned, since estimates move slowly. Source: AdaptSpec design; the same objective as vLLM's and SmartSpec's
    goodput (Liu et al. 2024, "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput").
    """

    def __init__(self, cost: CostTable, rows: int, tasks: int, settings: GoodputSettings = GoodputSettings()) -> None:
        """`tasks` counts the known tasks and task 0, unknown."""
        self._cost = cost
        self._settings = settings
        self._estimates = Estimates(cost, rows, tasks, settings.estimates)
        self._tiers = self._estimates.tiers
        self.max_depth = self._estimates.depth
        self.calibration = self._estimates.calibration
        self._wishes = Wishes(rows, self.max_depth)
        self._plan: BatchPlan | None = None
        self._planned_for: bytes | None = None  # these rows, while the same requests run in them
        self._firsts: dict[tuple[int, int, int], _First] = {}  # by task, rough lag, and depth allowed
        self._learned = 0  # rounds
        self._newcomers: Newcomers | None = None
        self._newcomers_until = 0  # rounds learned
        self._seats: Seats | None = None
        self._patience, self._rounds_left = _SOON, 0
        self._allowance = Allowance(settings.tryouts, settings.rest)
        self._trying: _Trying | None = None
        self._reading: _Trying | None = None  # a try that has only caught up so far
        self._unearned = 0  # rounds since tries were last looked for, but for those that stood
        self._try_costs = 0.0  # seconds that the next try takes at least

    def start(self, row: int, task: int) -> None:
        """See `Chooser.start`."""
        self._estimates.start(row, task)
        self._wishes.forget(row)
        self._planned_for = None
        seats, self._seats = self._seats, None
        if seats is not None and seats.some_off and self._plan is not None:
            self._allowance.grant(self._plan.plain, len(seats.choice.depths))

    def finish(self, row: int) -> None:
        """What the row taught stays with its task; its own counts go at the next start."""
        self._estimates.finish(row)

    def choose(self, signals: BatchSignals) -> Choice:
        """See `Chooser.choose`."""
        if not self.max_depth:
            return Choice(np.zeros_like(signals.rows), np.full_like(signals.rows, int(Reason.OFF)))
        batch, seats, plan = signals.rows.tobytes(), self._seats, self._plan
        if plan is None or self._rounds_left <= 0 or not plan.serves(signals.round_size):
            seats = None
            plan = self._planned(signals)
        if seats is None or seats.batch != batch:
            seats = self._seats = self._seated(plan, signals, batch)
            plan = self._plan or plan
        if seats.some_off:
            tryout = self._tryout(plan, seats.choice, signals)
            if tryout is not None:
                return tryout
        choice = seats.choice
        return choice if signals.least_limit >= self.max_depth else choice.within(signals.limits)

    @property
    def trying(self) -> bool:
        """Whether the last choice has rows draft against the plan, to learn."""
        return self._trying is not None

    def stands(self) -> int:
        """See `Stands`."""
        plan, seats = self._plan, self._seats
        if plan is None or seats is None or self._trying is not None or self._reading is not None:
            return 0
        rounds = self._rounds_left - 1
        if seats.some_off:
            rounds = min(rounds, self._allowance.rounds_until(self._try_costs, plan.plain) - 1)
            if len(seats.choice.depths) >= _LARGE:
                rounds = min(rounds, self._until_tries - 1)
        return max(0, min(rounds, _STANDS))

    def stood(self, rounds: int) -> None:
        """See `Stands`."""
        if self._plan is not None and self._seats is not None and self._seats.some_off:
            self._allowance.earn(self._plan.plain, rounds)

    def market(self, signals: BatchSignals) -> Market:
        """What drafting brings and costs these rows, by all that was learned so far."""
        estimates = self._estimates
        estimates.learn()
        return estimates.market(signals, estimates.hopeful(signals.rows))

    def learn(self, record: RoundRecord) -> None:
        """See `Chooser.learn`. Where the drafter was off but could be scored, what it would have got counts."""
        if record.shadow is not None:
            record = as_played(record, 0, self.max_depth)
        self.learn_played(record)

    def learn_played(self, record: RoundRecord, ran: BoolArray | None = None) -> None:
        """`learn` of a round as this drafter played it, scores left out: rows that are not in `ran` [B] were off."""
        self._rounds_left -= 1
        self._learned += 1
        self._estimates.note(record, ran)
        if self._trying is not None:
            self._settle(record)
        missed = record.missed
        if missed is not None:
            known = self._estimates.observe_missed(record.rows, missed, ran)
            if MANY * known > len(record.rows):
                self._rounds_left = 0

    def learned(self) -> dict[str, FloatArray]:
        """See `Estimates.learned`."""
        return self._estimates.learned()

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        self._estimates.restore(learned)
        self._plan = None
        self._firsts.clear()

    def _planned(self, signals: BatchSignals) -> BatchPlan:
        """A new plan for these rows; it also says what rows that join them should do."""
        estimates, rows = self._estimates, signals.rows
        estimates.learn()
        hopeful = estimates.hopeful(rows)
        market = estimates.market(signals, hopeful)
        best = self._cautious(best_plan(market), market, signals)
        factors = estimates.factors(rows)
        outlook = Outlook(
            best.goodput,
            hopeful,
            market.per_step,
            market.per_row,
            market.verify,
            factors,
            *estimates.rates(),
            planned=best.depths,
        )
        drafting = int(np.count_nonzero(best.depths))
        cap = None
        if drafting and self._settings.stops and self.calibration.informed:
            cap = estimates.reachable(outlook, drafting)
        plan = BatchPlan(signals.round_size, market, best, outlook, cap, self._tryout_cost(market, drafting))
        self._stand(plan, signals)
        return plan

    def _cautious(self, best: Plan, market: Market, signals: BatchSignals) -> Plan:
        """While nothing is known of the drafter, few rows catch up: not a whole batch of prompts."""
        if len(best.depths) < 2 or self._estimates.acceptance.seen()[0] >= _KNOWN:
            return best
        seconds = self._cost.catch_up_seconds(self._settings.drafter, 1.0) * signals.lag[0]
        order = np.argsort(seconds, kind="stable")
        allowed = np.zeros(len(order), dtype=np.bool_)
        allowed[order] = (np.cumsum(seconds[order]) <= _ADVANCE * market.plain) | (order == order[0])
        return best if allowed.all() else replace(best, depths=best.depths * allowed)

    def _seated(self, plan: BatchPlan, signals: BatchSignals, batch: bytes) -> Seats:
        """The plan for the rows that run now."""
        rows, wishes = signals.rows, self._wishes
        if self._planned_for != batch:
            planned = wishes.depths.take(rows)
            fresh = (planned < 0).nonzero()[0].tolist()
            if MANY * len(fresh) <= len(rows):
                for at in fresh:
                    planned[at] = self._welcome(at, plan, signals)
                choice = Choice(
                    wishes.asked.take(rows),
                    wishes.reasons.take(rows),
                    SeatedOutlook(plan.outlook, wishes, rows, planned),
                )
                return Seats(batch, choice, number(planned) < len(planned))
            # New neighbours change what a token is worth.
            self._patience = _SOON
            plan = self._first(signals) if signals.round_size == 1 else self._planned(signals)
        planned = plan.best.depths
        choice = Choice(*asked(planned, plan.cap), plan.outlook)
        return Seats(batch, choice, number(planned) < len(planned))

    def _first(self, signals: BatchSignals) -> BatchPlan:
        """The plan for a new row by itself: the last one's of its task, if little was learned since.

        Where answers are short a plan for each would take as long as it earns.
        """
        row, lag = signals.rows.item(), signals.lag[0, 0].item()
        # Lags within a factor of eight are alike.
        kind = int(self._estimates.task[row]), lag.bit_length() // 3, min(signals.limits.item(), self.max_depth)
        known = self._firsts.get(kind)
        if known is None or self._learned > known.until:
            plan = self._planned(signals)
            serves = _FRESH_DRAFTING if plan.best.depths.item() else _FRESH
            self._firsts[kind] = _First(plan, self._learned + min(serves, self._learned // 4))
            return plan
        # It rests on all that its task has taught: two rounds of this request would hardly move it. On tapes nothing is
        # lost by waiting for eight.
        self._patience = _LATER
        self._stand(known.plan, signals)
        return known.plan

    def _stand(self, plan: BatchPlan, signals: BatchSignals) -> None:
        """A plan for these rows begins to serve."""
        # A batch that stays the same is planned anew after 2, 4, 8 ... rounds: estimates settle. On tapes nothing is
        # lost by it, and a plan takes as long as a third of a small model's pass. Off, there is little news to plan on;
        # where few rows are all off there is none, but for a try that succeeds, which asks for a plan itself.
        drafting, longest = bool(plan.best.depths.any()), self._settings.replan_rounds
        self._patience = min(2 * self._patience, longest if drafting else 4 * longest)
        quiet = not drafting and len(signals.rows) < MANY and bool((signals.limits >= self._tiers[0]).all())
        # At first costs are news, too.
        self._rounds_left = 4 * longest if quiet and self._learned >= _COSTS_SETTLE else self._patience
        # Prices by which new rows are judged change little from plan to plan, unless drafting begins or ends, or the
        # batch is another.
        last = self._plan
        if last is None or drafting != bool(last.best.depths.any()) or not last.serves(plan.size):
            self._newcomers = None
        self._plan, self._planned_for = plan, signals.rows.tobytes()
        self._wishes.note(signals.rows, plan.best.depths, plan.cap, plan.outlook)

    def _welcome(self, at: int, plan: BatchPlan, signals: BatchSignals) -> int:
        """The depth of the row that joins a batch at this place in it; it is wished for from now on."""
        estimates, newcomers, row = self._estimates, self._newcomers, signals.rows.item(at)
        if newcomers is None or self._learned >= self._newcomers_until:
            newcomers = self._newcomers = Newcomers(plan, *estimates.rates())
            self._newcomers_until = self._learned + _NEWCOMERS_SERVE
        new = newcomers.of(estimates.task.item(row), estimates.hopeful_of_task, estimates.entry_of_task)
        depth = new.depth_after(signals.lag.item(0, at))
        self._wishes.note_one(row, depth, plan.cap, new.line)
        return depth

    @staticmethod
    def _tryout_cost(market: Market, drafting: int) -> tuple[float, float]:
        """Seconds for any try at all, and for each row that tries."""
        fixed = 0.0 if drafting else market.per_step + max(0.0, market.overhead - market.plain_overhead)
        # Passes of one and of two tokens are learned apart, so the longer may seem shorter: a try never saves time.
        return fixed, market.per_row + max(0.0, float(market.verify[1] - market.verify[0]))

    def _tryout(self, plan: BatchPlan, choice: Choice, signals: BatchSignals) -> Choice | None:
        """One token for rows that are off, as far as the allowance goes: fewest rejections, then least lag first."""
        self._unearned += 1
        # A large batch affords a try nearly every round: those of eight rounds at once share their draft step.
        early = len(choice.depths) >= _LARGE and self._until_tries < _TRIES_EVERY
        if early and self._reading is None:
            return None
        self._allowance.earn(plan.plain, self._unearned)
        self._unearned = 0
        reading = self._go_on_reading(choice, signals)
        return reading if reading or early else self._begin_try(plan, choice, signals)

    def _begin_try(self, plan: BatchPlan, choice: Choice, signals: BatchSignals) -> Choice | None:
        fixed, per_try = plan.tryout
        least = self._try_costs = fixed + per_try
        if not self._allowance.affords(least):
            return None
        # Catching up is priced at two rounds at most: saving for an ever longer lag would never end.
        catch_up = self._cost.catch_up_seconds(self._settings.drafter, 1.0)
        if len(choice.depths) == 1:
            self._try_costs = least + min(catch_up * signals.lag[0, 0].item(), 2.0 * plan.plain)
            if not self._allowance.affords(self._try_costs):
                return None
        off = np.flatnonzero((choice.depths == 0) & (signals.limits >= self._tiers[0]))
        entry = np.minimum(catch_up * signals.lag[0, off], 2.0 * plan.plain)
        if not self._allowance.affords(least + float(entry.min(initial=np.inf))):
            return None
        order = np.lexsort((entry, self._estimates.acceptance.rejections(signals.rows[off])))
        spent = fixed + np.cumsum(per_try + entry[order])
        tries = self._allowance.affordable(spent)
        if not tries:
            return None
        chosen = off[order[:tries]]
        self._trying = _Trying(self._only(signals.rows[chosen]), float(spent[tries - 1]), plan.plain)
        return self._try(chosen, choice, signals)

    @property
    def _until_tries(self) -> int:
        """Rounds until a large batch looks for tries again; this one is due if it is `_TRIES_EVERY`.

        With one policy it is the round in which costs are heard, and guards measure: so fewer rounds take long.
        """
        return _TRIES_EVERY - self._learned % _TRIES_EVERY

    def _go_on_reading(self, choice: Choice, signals: BatchSignals) -> Choice | None:
        """A long pause is caught up in several rounds; the try it was begun for lasts until something was drafted."""
        reading, self._reading = self._reading, None
        if reading is None:
            return None
        begun = reading.rows[signals.rows] & (choice.depths == 0)
        chosen = np.flatnonzero(begun & (signals.limits >= self._tiers[0]))
        if not len(chosen):
            self._allowance.settle(reading.cost, 0.0)
            return None
        self._trying = reading
        return self._try(chosen, choice, signals)

    def _try(self, chosen: IntArray, choice: Choice, signals: BatchSignals) -> Choice:
        """The plan, but for one token drafted by the rows at `chosen`; what few say of many can wait for the next."""
        depths = np.minimum(choice.depths, signals.limits)
        depths[chosen] = self._tiers[0]
        reasons = choice.reasons.copy()
        reasons[chosen] = int(Reason.EXPLORE)
        return Choice(depths, reasons, choice.outlook)

    def _only(self, rows: IntArray) -> BoolArray:
        """A mask of all the engine's rows with these set."""
        mask: BoolArray = np.zeros(len(self._wishes.depths), dtype=np.bool_)
        mask[rows] = True
        return mask

    def _settle(self, record: RoundRecord) -> None:
        trying, self._trying = self._trying, None
        if trying is not None:
            mine = trying.rows[record.rows]
            if record.caught_up and not record.drafted[mine].any():
                self._reading = trying
                return
            kept = int((record.emitted[mine] - 1).sum())
            self._allowance.settle(trying.cost, kept * trying.plain / len(record.rows))
            if MANY * int(np.count_nonzero(mine)) > len(mine):
                # Plans of many rows take longest, and on tapes hardly anything is lost by making one less.
                self._patience = _SOON if len(mine) < _LARGE else 4 * _SOON
                # Where all is off one in vain leaves it so; one that succeeds speaks against other first plans, too.
                if kept or (self._plan is not None and self._plan.best.depths.any()):
                    self._rounds_left = 0
            if kept:  # it speaks against first plans that are off
                self._firsts = {kind: known for kind, known in self._firsts.items() if known.plan.best.depths.any()}


@dataclass(frozen=True)
class _First:
    """The plan for the first row of a kind, and after how many rounds learned in all it is out of date."""

    plan: BatchPlan
    until: int


@dataclass(frozen=True)
class _Trying:
    """Rows that draft against the plan this round, what that costs, and what a plain round takes."""

    rows: BoolArray  # of the engine
    cost: float
    plain: float


class PriorSpec(Part):
    """What is believed before anything was seen."""

    acceptance: float = Field(default=0.6, gt=0.0, lt=1.0, description="Of a drafted token, given those before it.")
    weight: float = Field(default=20.0, gt=0.0, description="In observations.")
