"""A policy put together from its parts: chooser, stop rule, guards, and what is different for some tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from adaptspec.control.arrays import some
from adaptspec.control.ceilings import Ceilings, TaskTiers
from adaptspec.control.choosers.chooser import Choice, Chooser, Outlook
from adaptspec.control.choosers.goodput import Goodput
from adaptspec.control.copies import changed
from adaptspec.control.draft_temperature import DraftTemperature
from adaptspec.control.guards import Dwell, Stance, SwitchGuard
from adaptspec.control.learned import Remembers, restore_all, under
from adaptspec.control.policy import BatchSignals, Decision, watches_offers
from adaptspec.control.stopping.rules import StopRule
from adaptspec.draft_tables import StopTable
from adaptspec.types import Expected, FloatArray, IntArray, Reason, RoundRecord

# Names of what parts beside the chooser have learned begin with it; no chooser's does.
_BESIDE = "@"


class ComposedPolicy:
    """Guards and ceilings -> chooser -> dwell -> tiers of tasks -> stop rule. Implements `Policy`."""

    def __init__(
        self,
        chooser: Chooser,
        drafters: tuple[str, ...],
        *,
        stop: StopRule | None = None,
        guard: SwitchGuard | None = None,
        dwell: Dwell | None = None,
        ceilings: Ceilings | None = None,
        task_tiers: TaskTiers | None = None,
        task_stops: Mapping[int, StopRule] | None = None,
        keeper: Goodput | None = None,
        temperature: DraftTemperature | None = None,
    ) -> None:
        """`keeper` has the outlook that a stop rule asks for where the chooser has none."""
        self._chooser = chooser
        self._offered = chooser if watches_offers(chooser) else None
        self._drafters = drafters
        self._stop = stop or StopRule()
        self._guard = guard
        self._dwell = dwell
        self._ceilings = ceilings
        self._task_tiers = task_tiers
        self._barred = False  # a ceiling left no row a single token
        self._task_stops = dict(task_stops or {})
        self._task_learners = {task: rule for task, rule in self._task_stops.items() if rule.learns}
        self._keeper = keeper
        self._temperature = temperature
        self._memories = _memories(self._stop, self._task_stops, keeper, temperature)
        self._expected: tuple[Outlook, IntArray, Expected] | None = None
        self._said: tuple[Choice, Decision] | None = None
        self._stacks: tuple[bytes, tuple[StopTable | None, ...], StopTable | None] | None = None
        self._nothing: dict[Reason, Decision] = {}
        self._zeros: IntArray = np.zeros(0, dtype=np.int64)

    @property
    def drafters(self) -> tuple[str, ...]:
        """See `Policy.drafters`."""
        return self._drafters

    @property
    def max_depth(self) -> int:
        """See `Policy.max_depth`."""
        return self._chooser.max_depth

    @property
    def watches_offers(self) -> bool:
        """See `OfferWatcher`."""
        return self._offered is not None

    @property
    def looking(self) -> bool:
        """See `OfferWatcher`."""
        return self._offered is not None and self._offered.looking

    def start(self, row: int) -> None:
        """See `Policy.start`."""
        self._chooser.start(row)
        if self._guard is not None:
            self._guard.start()
        if self._dwell is not None:
            self._dwell.start(row)
        if self._keeper is not None:
            self._keeper.start(row)

    def finish(self, row: int) -> None:
        """See `Policy.finish`."""
        self._chooser.finish(row)

    def decide(self, signals: BatchSignals) -> Decision:
        """See `Policy.decide`."""
        if len(self._zeros) != len(signals.rows):
            self._zeros = np.zeros(len(signals.rows), dtype=np.int64)
        limits = signals.limits
        if self._ceilings is not None:
            signals = self._below_ceilings(signals, self._ceilings)
        self._barred = signals.limits is not limits and not some(signals.limits)
        if self._barred:
            return self._none(Reason.CEILING)
        stance = Stance.RUN if self._guard is None else self._guard.stance(signals)
        if stance is Stance.OFF or stance is Stance.PLAIN_ONCE:
            return self._none(Reason.GUARD)
        choice = self._chooser.choose(signals)
        if stance is Stance.PROBE:
            reasons = np.where(choice.depths > 0, int(Reason.PROBE), choice.reasons)
            choice = replace(choice, reasons=reasons)
        elif self._dwell is not None:
            choice = self._dwell.hold(signals, choice)
        if self._task_tiers is not None:
            choice = self._on_tiers(choice, self._task_tiers.lower(choice.depths, signals.tasks))
        if signals.limits is not limits:
            choice = replace(choice, reasons=self._explain(choice, signals.limits, limits))
        return self._decision(choice, signals)

    def learn(self, record: RoundRecord) -> None:
        """See `Policy.learn`."""
        self._chooser.learn(record)
        if self._stop.learns:
            self._stop.learn(record)
        if self._task_learners:
            self._teach_task_stops(record)
        if self._keeper is not None:
            self._keeper.learn(record)
        if self._temperature is not None and record.temperature_scores is not None:
            self._temperature.learn(record)
        # A guard learns nothing of rounds in which nobody could have drafted.
        if self._guard is not None and not self._barred:
            self._guard.after(record)

    def _decision(self, choice: Choice, signals: BatchSignals) -> Decision:
        drafting = some(choice.depths)
        stop = self._stop_of(choice, signals) if drafting else None
        temperature = (
            self._temperature.table(len(choice.depths)) if drafting and self._temperature is not None else None
        )
        said = self._said
        # A chooser whose plan stands makes the same choice, which is the same decision.
        if said is not None and said[0] is choice and said[1].stop is stop and said[1].temperature is temperature:
            return said[1]
        drafter = self._zeros if choice.drafter is None else choice.drafter
        decision = Decision(
            choice.depths,
            choice.reasons,
            drafter,
            stop,
            choice.provenance,
            temperature,
            expected=choice.expected or self._expect(choice),
        )
        self._said = choice, decision
        return decision

    def learned(self) -> dict[str, FloatArray]:
        """What the chooser has learned, and under names of their own stop rules, the outlook and the draft temperature.

        A guard measures anew: whether speculation loses is a matter of this machine at this hour, and where it does a
        guard finds out within the time of a dozen plain rounds. Dwelling is a matter of rows, which do not outlive us.
        """
        known = self._chooser.learned()
        for prefix, part in self._memories.items():
            known.update({prefix + name: values for name, values in part.learned().items()})
        return known

    def restore(self, learned: Mapping[str, FloatArray]) -> None:
        """See `Policy.restore`. Parts of which the state says nothing, or of another rule, start anew."""
        restore_all(learned, self.learned, self._take_over)

    def _take_over(self, learned: Mapping[str, FloatArray]) -> None:
        self._chooser.restore({name: values for name, values in learned.items() if not name.startswith(_BESIDE)})
        for prefix, part in self._memories.items():
            mine = under(prefix, learned)
            if mine and mine.keys() == part.learned().keys():
                part.restore(mine)

    def _below_ceilings(self, signals: BatchSignals, ceilings: Ceilings) -> BatchSignals:
        limits = ceilings.limits(signals)
        if limits is signals.limits:
            return signals
        return replace(signals, limits=limits, offered=np.minimum(signals.offered, limits))

    def _explain(self, choice: Choice, lowered: IntArray, limits: IntArray) -> IntArray:
        """Rows at a limit that a ceiling lowered are there because of it."""
        bound = (choice.depths == lowered) & (lowered < np.minimum(limits, self._chooser.max_depth))
        return np.where(bound, int(Reason.CEILING), choice.reasons)

    def _on_tiers(self, choice: Choice, depths: IntArray) -> Choice:
        """The choice at depths that its tasks allow."""
        lowered = depths < choice.depths
        if not lowered.any():
            return choice
        reasons = np.where(lowered, int(Reason.CEILING), choice.reasons)
        return replace(choice, depths=depths, reasons=reasons, expected=None)

    def _expect(self, choice: Choice) -> Expected | None:
        """What the chooser expects; a plan that serves several rounds is asked once, since this is the hot path."""
        known, outlook = self._expected, choice.outlook
        if outlook is None:
            return None
        if known is None or known[0] is not outlook or known[1] is not choice.depths:
            known = self._expected = outlook, choice.depths, outlook.expected(choice.depths, choice.drafter)
        return known[2]

    def _none(self, reason: Reason) -> Decision:
        known = self._nothing.get(reason)
        if known is None or known.depths is not self._zeros:
            reasons: IntArray = np.full(len(self._zeros), int(reason), dtype=np.int64)
            known = self._nothing[reason] = Decision(self._zeros, reasons, self._zeros)
        return known

    def _teach_task_stops(self, record: RoundRecord) -> None:
        for task, rule in self._task_learners.items():
            mine = np.flatnonzero(record.tasks == task)
            if len(mine):
                rule.learn(record.take(mine))

    def _stop_of(self, choice: Choice, signals: BatchSignals) -> StopTable | None:
        if self._keeper is not None and choice.outlook is None:
            choice = changed(choice, outlook=self._keeper.outlook(signals))
        usual = self._stop.table(choice) if choice.stop is None else choice.stop
        if not self._task_stops:
            return usual
        tasks = signals.tasks
        tables = {task: self._task_stops[task].table(choice) for task in self._task_stops if task in tasks}
        return self._stacked(tasks, tables, usual) if tables else usual

    def _stacked(
        self, tasks: IntArray, tables: Mapping[int, StopTable | None], usual: StopTable | None
    ) -> StopTable | None:
        """The tables of tasks' own beside that of all others, by the task of each row [B]; kept while none changes."""
        made = (*tables.values(), usual)
        last = self._stacks
        if last is None or last[0] != tasks.tobytes() or any(a is not b for a, b in zip(last[1], made, strict=True)):
            lanes = [(np.flatnonzero(tasks == task), table) for task, table in tables.items()]
            lanes.append((np.flatnonzero(~np.isin(tasks, list(tables))), usual))
            last = self._stacks = tasks.tobytes(), made, StopTable.stacked(lanes, len(tasks))
        return last[2]


def _memories(
    stop: StopRule,
    task_stops: Mapping[int, StopRule],
    keeper: Goodput | None,
    temperature: DraftTemperature | None,
) -> dict[str, Remembers]:
    """The parts that have something to keep, by the prefix of its names."""
    parts: dict[str, object] = {"stop": stop, "outlook": keeper, "temperature": temperature}
    parts.update({f"stop-of-task-{task}": rule for task, rule in task_stops.items()})
    return {f"{_BESIDE}{name}/": part for name, part in parts.items() if isinstance(part, Remembers)}
