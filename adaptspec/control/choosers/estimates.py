"""What drafting would bring and cost the rows of a round, by all that was learned of one drafter so far.

Keeps acceptance, confidence, how far drafts go on and how long requests last; it chooses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from adaptspec.control.arrays import number
from adaptspec.control.calibration import Calibration
from adaptspec.control.choosers.chooser import Outlook
from adaptspec.control.choosers.notes import Notes, Renames
from adaptspec.control.choosers.planning import Market
from adaptspec.control.continuation import Continuation
from adaptspec.control.cost import CostTable
from adaptspec.control.learned import counts
from adaptspec.control.policy import BatchSignals
from adaptspec.control.signals import AcceptanceSignals, SignalSettings
from adaptspec.types import BoolArray, FloatArray, IntArray, Missed, RoundRecord

# Missed tokens that are worth looking at.
_TELLING = 8
# How fast the rounds that a task's requests last are learned, per request.
_LASTS_RATE = 0.2
# What was seen too rarely is never hoped to be surer than this.
_HOPED = 0.98


@dataclass(frozen=True)
class EstimateSettings:
    """Of which drafter and tiers (beside 0), and how what is not known yet is judged."""

    tiers: tuple[int, ...]
    drafter: str
    signals: SignalSettings = field(default_factory=SignalSettings)
    horizon_rounds: float = 32.0  # catching up is spread over the rounds a request lasts: at first this many
    optimism: float = 0.1  # added to the acceptance of position j: optimism / sqrt(1 + times it was reached)


@dataclass(frozen=True)
class _Telling:
    """What was found of tokens that these rows missed, and which `count` of them, `telling` [B], say enough."""

    rows: IntArray
    missed: Missed
    telling: BoolArray
    count: int


class Estimates:
    """Counts of rounds as one drafter played them, and the markets that follow from them."""

    def __init__(self, cost: CostTable, rows: int, tasks: int, settings: EstimateSettings) -> None:
        """`tasks` counts the known tasks and task 0, unknown."""
        self._cost = cost
        self._settings = settings
        self.tiers: IntArray = np.array(sorted(set(settings.tiers) - {0}), dtype=np.int64)
        self.depth = int(self.tiers[-1]) if len(self.tiers) else 0
        # Beyond the rows, one for each task: what is noted of requests that have ended.
        self._ended = rows
        self.task: IntArray = np.zeros(rows, dtype=np.int64)
        self._rounds: IntArray = np.zeros(rows, dtype=np.int64)  # of the request in each row
        self._lasts: FloatArray = np.full(tasks, settings.horizon_rounds)  # rounds of a request
        self.acceptance = AcceptanceSignals(rows + tasks, tasks, self.depth, settings.signals)
        self.calibration = Calibration(rows + tasks, tasks)
        for task in range(tasks):
            self.acceptance.start(rows + task, task)
            self.calibration.start(rows + task, task)
        self._continuation = Continuation(self.depth)
        self._notes = Notes(self.depth)
        self._missed: list[_Telling] = []
        self._renames = Renames()  # of rows in `_missed`

    def start(self, row: int, task: int) -> None:
        """A request begins in `row`."""
        heir = self._ended + int(self.task[row])
        self._notes.rename(row, heir)
        if self._missed:
            self._renames.note(sum(told.count for told in self._missed), row, heir)
        self.task[row] = task
        self.acceptance.start(row, task)
        self.calibration.start(row, task)

    def finish(self, row: int) -> None:
        """What the row taught stays with its task; its own counts go at the next start."""
        task, rounds = self.task[row], self._rounds[row]
        if rounds:
            self._lasts[task] += _LASTS_RATE * (rounds - self._lasts[task])
        self._rounds[row] = 0

    def note(self, record: RoundRecord, ran: BoolArray | None = None) -> None:
        """Note a round as this drafter played it, scores left out: rows that are not in `ran` [B] drafted nothing."""
        self._rounds[record.rows] += 1
        self._notes.add(record, ran)
        if self._notes.full:
            self.learn()

    def observe_missed(self, rows: IntArray, missed: Missed, ran: BoolArray | None = None) -> int:
        """What a few tokens tell, drafts will tell soon enough: each new request begins with one.

        Rows that are not in `ran` [B] were not judged. Returns how many rows are known better now.
        """
        if len(rows) == 1 and missed.judged.item() < _TELLING:
            return 0
        telling: BoolArray = missed.judged >= _TELLING
        if ran is not None:
            telling &= ran
        count = number(telling)
        if count:
            self._missed.append(_Telling(rows, missed, telling, count))
        return count

    def learn(self) -> None:
        """Learn what was noted."""
        if self._missed:
            self._learn_missed()
        new = self._notes.take()
        if new is None:
            return
        self.acceptance.observe(new.rows, new.drafted, new.kept)
        self._continuation.observe(new.depths, new.drafted, new.kept)
        self.calibration.observe(new.confidence, new.drafted, new.kept, new.rows)

    def learned(self) -> dict[str, FloatArray]:
        """Counts of all traffic and of tasks, how often drafts go on, and the calibration."""
        self.learn()
        return {
            "acceptance": self.acceptance.learned(),
            "continuation": self._continuation.learned(),
            "calibration": self.calibration.learned(),
        }

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Chooser.restore`."""
        known = {name: counts(learned, name, now.shape) for name, now in self.learned().items()}
        self.acceptance.restore(known["acceptance"])
        self._continuation.restore(known["continuation"])
        self.calibration.restore(known["calibration"])

    def _learn_missed(self) -> None:
        told = [(t.rows[t.telling], t.missed.judged[t.telling], t.missed.agreed[t.telling]) for t in self._missed]
        rows, judged, agreed = (np.concatenate(part) for part in zip(*told, strict=True))
        self._renames.apply(rows)
        self._missed.clear()
        self.acceptance.observe_missed(rows, judged, agreed)

    def hopeful(self, rows: IntArray) -> FloatArray:
        """Conditional acceptance [B, D] of rows, with hope where little was seen."""
        if len(rows) > 1:
            acceptance = self.acceptance.acceptance(rows)
            unsure = self._settings.optimism / np.sqrt(1.0 + self.acceptance.seen())
            return np.minimum(acceptance + unsure, np.maximum(acceptance, _HOPED))
        return np.array([self._hope(self.acceptance.acceptance_of_one(rows.item()))])

    def hopeful_of_task(self, task: int) -> list[float]:
        """The same [D] of new rows of a task."""
        return self._hope(self.acceptance.of_task(task))

    def _hope(self, acceptance: list[float]) -> list[float]:
        optimism = self._settings.optimism
        return [
            min(rate + optimism / math.sqrt(1.0 + times), max(rate, _HOPED))
            for rate, times in zip(acceptance, self.acceptance.seen().tolist(), strict=True)
        ]

    def factors(self, rows: IntArray) -> FloatArray:
        """See `Calibration.factors`."""
        if len(rows) == 1:
            return np.array([self.calibration.factor_of_one(rows.item())])
        return self.calibration.factors(rows)

    def rates(self) -> tuple[FloatArray, FloatArray]:
        """See `Continuation.rates`."""
        return self._continuation.rates()

    def entry(self, rows: IntArray, lag: IntArray) -> FloatArray:
        """Seconds per round for catching up, spread over the rounds that requests of the row's task last; all [N]."""
        each = self._cost.catch_up_seconds(self._settings.drafter, 1.0)
        return np.asarray(each * lag / self._lasts[self.task[rows]], dtype=np.float64)

    def entry_of_task(self, task: int) -> float:
        """Seconds per round for each token that a row of a task must catch up."""
        return self._cost.catch_up_seconds(self._settings.drafter, 1.0) / self._lasts.item(task)

    def market(self, signals: BatchSignals, acceptance: FloatArray) -> Market:
        """What tokens bring and cost rows of this acceptance [B, D]."""
        cost, name, size = self._cost, self._settings.drafter, signals.round_size
        alone = len(signals.rows) == 1
        context = float(signals.context.item() if alone else signals.context.sum())
        per_step, per_row = cost.step_line(name, size)
        kept, drafted = self._continuation.rates()
        return Market(
            gains=acceptance.cumprod(axis=1) * kept,
            sizes=drafted[None] if alone else np.broadcast_to(drafted, acceptance.shape),
            tiers=self.tiers,
            limits=signals.limits,
            entry=self.entry(signals.rows, signals.lag[0]),
            base_tokens=float(size),
            plain=cost.plain_seconds(size, context),
            plain_overhead=cost.overhead_seconds(size, drafting=False),
            overhead=cost.overhead_seconds(size, drafting=True) + cost.start_seconds(name),
            per_step=per_step,
            per_row=per_row,
            verify=cost.verify_line(size, len(signals.rows) * self.depth, context),
        )

    def reachable(self, outlook: Outlook, rows: int) -> int:
        """The deepest tier a stop rule could reach if every token of `rows` rows were as sure as tokens get."""
        best = float(self.calibration.table().max())
        easiest: list[float] = outlook.acceptance.max(axis=0).tolist()
        verify = outlook.verify[: rows * self.depth + 1 : rows].tolist()
        depth, survival = 1, 1.0
        while depth < self.depth:
            survival *= best
            price = outlook.per_step / rows + outlook.per_row + (verify[depth + 1] - verify[depth]) / rows
            if survival * easiest[depth] <= outlook.goodput * price:
                break
            depth += 1
        return int(self.tiers[max(0, int(np.searchsorted(self.tiers, depth, side="right")) - 1)])
