"""The default: the depths of the whole batch, chosen jointly for the most tokens per second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from pydantic import Field

from adaptspec.control.choosers.as_played import as_played
from adaptspec.control.choosers.chooser import Choice, Outlook
from adaptspec.control.choosers.planning import Market, best_plan
from adaptspec.control.choosers.tryouts import Allowance
from adaptspec.control.cost import CostTable
from adaptspec.control.learned import counts
from adaptspec.control.policy import BatchSignals
from adaptspec.control.schema import Part
from adaptspec.control.signals import AcceptanceSignals, Calibration, Continuation, SignalSettings
from adaptspec.types import FloatArray, IntArray, Reason, RoundRecord


@dataclass(frozen=True)
class GoodputSettings:
    """`tiers`: depths allowed beside 0. `stops`: a stop rule will cut drafts, so depths are caps that leave it room."""

    tiers: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    drafter: str = "draft-model"
    signals: SignalSettings = field(default_factory=SignalSettings)
    stops: bool = True
    horizon_rounds: float = 32.0  # catching up is spread over this many rounds to come
    optimism: float = 0.15  # added to the acceptance of position j: optimism / sqrt(1 + times it was reached)
    tryouts: float = 0.01  # share of time that may be lost on trying rows that are off
    replan_rows: int = 16  # a plan serves until this many row-rounds can be learned


class Goodput:
    """argmax over depths of (B + sum of survival of the drafted tokens) / T(draft steps, rows per step, verify tokens).

    Survival is the product of the row's conditional acceptances, shrunk towards its task and all traffic. T charges
    draft steps, the verify pass, the overhead and the catch-up of a lagging draft cache. Off is the empty choice.

    Exploration is upward only: a round at depth d says everything about smaller depths, nothing about larger ones.
    Optimism is added where little was seen, and fades as counts grow. Rows that are off try one token now and then, on
    an allowance that bounds what this may cost; a new request is tried first, since it may differ from the last.

    With a stop rule the depth is a cap: the deepest position the rule could still reach on a run of sure tokens.

    Regimes: right wherever costs can be measured; adapts per request. Replans when the batch changes or enough rounds
    were learned, since estimates move slowly. Source: AdaptSpec design; the same objective as vLLM's and SmartSpec's
    goodput (Liu et al. 2024, "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput").
    """

    def __init__(self, cost: CostTable, rows: int, tasks: int, settings: GoodputSettings = GoodputSettings()) -> None:
        """`tasks` counts the known tasks and task 0, unknown."""
        self._cost = cost
        self._settings = settings
        self._tiers: IntArray = np.array(sorted(set(settings.tiers) - {0}), dtype=np.int64)
        self.max_depth = int(self._tiers[-1]) if len(self._tiers) else 0
        self._signals = AcceptanceSignals(rows, tasks, self.max_depth, settings.signals)
        self._continuation = Continuation(self.max_depth)
        self.calibration = Calibration()
        self._notes = _Notes(self.max_depth)
        self._cached: _Cached | None = None
        self._patience = 1
        self._lot = 8
        self._planned_at = 0
        self._allowance = Allowance(settings.tryouts)
        self._trying: _Trying | None = None
        self._reading: _Trying | None = None  # a try that has only caught up so far

    def start(self, row: int, task: int) -> None:
        """See `Chooser.start`."""
        self._learn_notes()
        self._signals.start(row, task)
        if self._cached is not None and self._cached.some_off:
            self._allowance.grant(self._cached.plain, len(self._cached.choice.depths))
        self._cached, self._patience = None, 1

    def finish(self, row: int) -> None:
        """What the row taught stays with its task; its own counts go at the next start."""

    def choose(self, signals: BatchSignals) -> Choice:
        """See `Chooser.choose`."""
        cached = self._cached
        batch = signals.rows.tobytes()
        if cached is None or not cached.serves(batch, signals.beside, self._notes.count - self._planned_at):
            cached = self._plan(signals, batch)
            self._cached = cached
        if cached.some_off:
            tryout = self._tryout(cached, signals)
            if tryout is not None:
                return tryout
        return cached.choice.within(signals.limits)

    def market(self, signals: BatchSignals) -> Market:
        """What drafting brings and costs these rows, by all that was learned so far; the next plan is made anew."""
        self._cached = None
        return self._market(signals, self._hopeful(signals.rows))

    def learn(self, record: RoundRecord) -> None:
        """See `Chooser.learn`. Where the drafter was off but could be scored, what it would have got counts."""
        if record.shadow is not None:
            record = as_played(record, 0, self.max_depth)
        notes, size = self._notes, len(record.rows)
        if size == 1:
            notes.add_one(record)
        for start in range(0, size if size > 1 else 0, notes.MOST):
            if not notes.has_room:
                self._learn_notes()
            notes.add(record, slice(start, min(size, start + notes.MOST)))
        if self._trying is not None:
            self._settle(record)
        if record.missed is not None:
            self._signals.observe_missed(record.rows, record.missed.judged, record.missed.agreed)
            self._cached = None
        if not notes.has_room:
            self._learn_notes()

    def learned(self) -> dict[str, FloatArray]:
        """Counts of all traffic and of tasks, how often drafts go on, and the calibration; rounds in hand are left."""
        return {
            "acceptance": self._signals.learned(),
            "continuation": self._continuation.learned(),
            "calibration": self.calibration.learned(),
        }

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        known = {name: counts(learned, name, now.shape) for name, now in self.learned().items()}
        self._signals.restore(known["acceptance"])
        self._continuation.restore(known["continuation"])
        self.calibration.restore(known["calibration"])
        self._cached = None

    def _plan(self, signals: BatchSignals, batch: bytes) -> _Cached:
        hopeful = self._hopeful(signals.rows)
        market = self._market(signals, hopeful)
        plan = best_plan(market)
        outlook = Outlook(plan.goodput, hopeful, market.per_step, market.per_row, market.verify)
        depths = plan.depths
        drafting = int(np.count_nonzero(depths))
        if drafting and self._settings.stops and self.calibration.informed:
            depths = np.where(depths > 0, self._reachable(outlook, drafting), 0)
        reasons = np.where(depths > 0, int(Reason.POLICY), int(Reason.OFF))
        # A batch that stays the same is planned anew after 2, 4, 8 ... row-rounds: estimates settle.
        self._patience = min(2 * self._patience, self._settings.replan_rows)
        choice = Choice(depths, reasons, outlook)
        some_off = drafting < len(depths) and self.max_depth > 0
        tryout = self._tryout_cost(market, drafting) if some_off else (0.0, 0.0)
        return _Cached(batch, signals.beside, self._patience, choice, some_off, market.plain, tryout)

    @staticmethod
    def _tryout_cost(market: Market, drafting: int) -> tuple[float, float]:
        """Seconds for any try at all, and for each row that tries."""
        fixed = 0.0 if drafting else market.per_step + max(0.0, market.overhead - market.plain_overhead)
        return fixed, market.per_row + float(market.verify[1] - market.verify[0])

    def _hopeful(self, rows: IntArray) -> FloatArray:
        """Conditional acceptance [B, D] by all that was seen, with hope where that is little."""
        self._learn_notes()
        acceptance = self._signals.acceptance(rows)
        unsure = self._settings.optimism / np.sqrt(1.0 + self._signals.seen())
        return np.minimum(acceptance + unsure, np.maximum(acceptance, 0.98))

    def _market(self, signals: BatchSignals, acceptance: FloatArray) -> Market:
        cost, name, size = self._cost, self._settings.drafter, signals.round_size
        context = float(signals.context.sum())
        per_step, per_row = cost.step_line(name, size)
        survival = np.cumprod(acceptance, axis=1)
        kept, drafted = self._continuation.rates()
        tokens = size + np.arange(len(signals.rows) * self.max_depth + 1, dtype=np.float64)
        catch_up = cost.catch_up_seconds(name, 1.0) / self._settings.horizon_rounds
        return Market(
            gains=survival * kept,
            sizes=np.broadcast_to(drafted, survival.shape),
            tiers=self._tiers,
            limits=signals.limits,
            entry=signals.lag[0].astype(np.float64) * catch_up,
            base_tokens=float(size),
            plain=cost.plain_seconds(size, context),
            plain_overhead=cost.overhead_seconds(size, drafting=False),
            overhead=cost.overhead_seconds(size, drafting=True) + cost.start_seconds(name),
            per_step=per_step,
            per_row=per_row,
            verify=cost.verify_curve(size, tokens, context),
        )

    def _reachable(self, outlook: Outlook, rows: int) -> int:
        """The deepest tier a stop rule could reach if every token of `rows` rows were as sure as tokens get."""
        best = float(self.calibration.table().max())
        verify, depth, survival = outlook.verify, 1, 1.0
        while depth < self.max_depth:
            survival *= best
            done, more = rows * depth, rows * (depth + 1)
            price = outlook.per_step / rows + outlook.per_row + float(verify[more] - verify[done]) / rows
            if survival * float(outlook.acceptance[:, depth].max()) <= outlook.goodput * price:
                break
            depth += 1
        return int(self._tiers[max(0, int(np.searchsorted(self._tiers, depth, side="right")) - 1)])

    def _tryout(self, cached: _Cached, signals: BatchSignals) -> Choice | None:
        """One token for rows that are off, as far as the allowance goes: fewest rejections, then least lag first."""
        self._allowance.earn(cached.plain)
        reading = self._go_on_reading(cached, signals)
        if reading is not None:
            return reading
        fixed, per_try = cached.tryout
        catch_up = self._cost.catch_up_seconds(self._settings.drafter, 1.0)
        if not self._allowance.affords(fixed + per_try):
            return None
        off = np.flatnonzero((cached.choice.depths == 0) & (signals.limits >= self._tiers[0]))
        if not len(off):
            return None
        # Catching up is priced at two rounds at most: saving for an ever longer lag would never end.
        entry = np.minimum(catch_up * signals.lag[0, off], 2.0 * cached.plain)
        order = np.lexsort((entry, self._signals.rejections(signals.rows[off])))
        spent = fixed + np.cumsum(per_try + entry[order])
        number = sum(1 for seconds in spent.tolist() if self._allowance.affords(seconds))
        if not number:
            return None
        chosen = off[order[:number]]
        self._trying = _Trying(frozenset(signals.rows[chosen].tolist()), float(spent[number - 1]), cached.plain)
        return self._try(chosen, cached, signals)

    def _go_on_reading(self, cached: _Cached, signals: BatchSignals) -> Choice | None:
        """A long pause is caught up in several rounds; the try it was begun for lasts until something was drafted."""
        reading, self._reading = self._reading, None
        if reading is None:
            return None
        begun = np.isin(signals.rows, list(reading.rows)) & (cached.choice.depths == 0)
        chosen = np.flatnonzero(begun & (signals.limits >= self._tiers[0]))
        if not len(chosen):
            self._allowance.settle(reading.cost, 0.0)
            return None
        self._trying = reading
        return self._try(chosen, cached, signals)

    def _try(self, chosen: IntArray, cached: _Cached, signals: BatchSignals) -> Choice:
        """The plan, but for one token drafted by the rows at `chosen`."""
        depths = np.minimum(cached.choice.depths, signals.limits)
        depths[chosen] = self._tiers[0]
        reasons = cached.choice.reasons.copy()
        reasons[chosen] = Reason.EXPLORE
        self._cached, self._patience = None, 1
        return Choice(depths, reasons, cached.choice.outlook)

    def _settle(self, record: RoundRecord) -> None:
        trying, self._trying = self._trying, None
        if trying is not None:
            mine = np.isin(record.rows, list(trying.rows))
            if record.caught_up and not record.drafted[mine].any():
                self._reading = trying
                return
            kept = int(record.accepted[mine].sum())
            self._allowance.settle(trying.cost, kept * trying.plain / len(record.rows))

    def _learn_notes(self) -> None:
        """Rows learn at once; what is common to all drafts is slow to change, and learned in larger lots."""
        notes = self._notes
        rows, depths, drafted, accepted = notes.rounds()
        if notes.one_row and notes.parts:
            new = slice(notes.parts[0].start, notes.count)
            self._signals.observe_row(int(rows[new.start]), drafted[new], accepted[new])
        else:
            for part in notes.parts:
                self._signals.observe(rows[part], drafted[part], accepted[part])
        notes.parts.clear()
        notes.one_row = True
        if notes.count >= self._lot:
            self._lot = min(2 * self._lot, 64)
            self._continuation.observe(depths, drafted, accepted)
            self.calibration.observe(notes.confidence(), drafted, accepted)
            notes.clear()
        self._planned_at = notes.count


@dataclass(frozen=True)
class _Cached:
    """A plan and what it was made for: this batch, until that many row-rounds are waiting to be learned."""

    batch: bytes
    beside: int
    until: int
    choice: Choice
    some_off: bool
    plain: float  # seconds of a round without drafts
    tryout: tuple[float, float]

    def serves(self, batch: bytes, beside: int, learnable: int) -> bool:
        return learnable < self.until and batch == self.batch and beside == self.beside


@dataclass(frozen=True)
class _Trying:
    """Rows that draft against the plan this round, what that costs, and what a plain round takes."""

    rows: frozenset[int]
    cost: float
    plain: float


class _Notes:
    """Row-rounds not yet learned: learning many at once costs hardly more than one."""

    _ROOM, MOST = 256, 128

    def __init__(self, depth: int) -> None:
        self.count = 0
        self.one_row = True
        self.parts: list[slice] = []
        self._whole: IntArray = np.zeros((4, self._ROOM), dtype=np.int64)
        self._confidence: FloatArray = np.full((self._ROOM, depth), np.nan)

    @property
    def has_room(self) -> bool:
        return self.count + self.MOST <= self._ROOM

    def rounds(self) -> IntArray:
        """Rows, depths, drafted, accepted: [4, N]."""
        return self._whole[:, : self.count]

    def confidence(self) -> FloatArray:
        """[N, D]."""
        return self._confidence[: self.count]

    def clear(self) -> None:
        self._confidence[: self.count] = np.nan
        self.count = 0

    def add_one(self, record: RoundRecord) -> None:
        # Four times faster at batch 1, where a round is shortest, than slices of one.
        n, whole, row = self.count, self._whole, record.rows.item()
        self.one_row = self.one_row and (not self.parts or bool(whole[0, n - 1] == row))
        whole[0, n] = row
        whole[2, n] = drafted = record.drafted.item()
        # A row that only caught up was not asked for a draft: its end says nothing of how long drafts go on.
        whole[1, n] = 0 if record.caught_up and not drafted else record.depths.item()
        whole[3, n] = record.accepted.item()
        if drafted:
            self._confidence[n, : record.confidence.shape[1]] = record.confidence[0]
        self.count = n + 1
        self.parts.append(slice(n, n + 1))

    def add(self, record: RoundRecord, part: slice) -> None:
        self.one_row = False
        here = slice(self.count, self.count + part.stop - part.start)
        self._whole[0, here] = record.rows[part]
        self._whole[2, here] = drafted = record.drafted[part]
        depths = record.depths[part]
        self._whole[1, here] = np.where(drafted > 0, depths, 0) if record.caught_up else depths
        self._whole[3, here] = record.accepted[part]
        self._confidence[here, : record.confidence.shape[1]] = record.confidence[part]
        self.count = here.stop
        self.parts.append(here)


class PriorSpec(Part):
    """What is believed before anything was seen."""

    acceptance: float = Field(default=0.6, gt=0.0, lt=1.0, description="Of a drafted token, given those before it.")
    weight: float = Field(default=20.0, gt=0.0, description="In observations.")
