"""Guards: what keeps a policy from ever losing for long, whatever its chooser believes.

Knows rounds as tokens and seconds. A guard overrules depths; it never picks a depth of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from adaptspec.control.arrays import number, total
from adaptspec.control.choosers.chooser import Choice
from adaptspec.control.cost import CostTable, batch_bucket
from adaptspec.control.policy import BatchSignals
from adaptspec.types import IntArray, Reason, RoundRecord


@dataclass(frozen=True)
class NeverSlower:
    """Lost: `losing_windows` windows in a row of `window_rounds` speculating rounds below (1 - margin) x plain."""

    margin: float = 0.03
    window_rounds: int = 16
    losing_windows: int = 2


@dataclass(frozen=True)
class Probe:
    """Off, then tried again after `after_tokens` emitted tokens; each try in vain multiplies the wait by `backoff`."""

    after_tokens: int = 64
    backoff: float = 2.0
    rounds: int = 6
    longest: int = 65536


@dataclass(frozen=True)
class GuardSettings:
    """When speculation is switched off, and tried again; None leaves a rule out."""

    never_slower: NeverSlower | None = None
    disable_below_acceptance: float | None = None
    probe: Probe = Probe()
    refresh_rounds: int = 256  # speculating rounds after which one plain round renews the baseline


class Stance(Enum):
    """What the guard lets a round do."""

    RUN = "run"
    OFF = "off"
    PROBE = "probe"
    PLAIN_ONCE = "plain once"  # a single round without speculation, to renew the baseline


class SwitchGuard:
    """Never slower than plain decoding, measured; off is recoverable.

    States: running, off, probing. Running becomes off when windows of delivered goodput (emitted tokens over
    seconds, sums) fall below plain decoding's at the same batch size, or acceptance at the first position falls below
    its floor. Off becomes probing after a number of emitted tokens that grows with each probe in vain. A probe that
    wins is on trial: the first window it wins resets the wait, losing before that lengthens it like a probe in vain,
    so that luck in a few rounds starts no oscillation. A window or probe ends early once it has cost as much as it
    may, so that even a hopeless draft costs little. A new request shortens what is left of the wait by its share of
    the batch, by half where it is alone: what lost on the last may pay on this one.

    Nothing of it is kept over a restart: to find out anew costs some plain rounds' time, to believe what another hour
    or machine measured could cost an hour.
    """

    # A probe or window may lose this many plain rounds' time before it is cut short.
    _BUDGET_ROUNDS = 4.0
    # A round that had to catch up this many tokens measures the catching up, not speculation.
    _CATCH_UP = 8
    # Unless most rounds with drafts do: where requests come and go, catching up is part of what drafts cost.
    _READING = 8
    # So many rounds without drafts end a window.
    _IDLE_ROUNDS = 8
    # The baseline is renewed after this many speculating rounds, then twice as many, and so on.
    _FIRST_REFRESH = 64
    # Rounds are measured so many at a time, or as many as a window takes: one by one they take twice as long. From
    # `_LARGE` rows on each tells more, and a policy does more in each: every eighth round does all that can wait.
    _LOT, _LARGE, _LARGE_LOT = 3, 32, 8

    def __init__(self, settings: GuardSettings, cost: CostTable) -> None:
        self._settings = settings
        self._cost = cost
        self._stance = Stance.RUN
        self._wait = float(settings.probe.after_tokens)
        self._left = 0.0
        self._probed = 0
        self._losses = 0
        self._idle = 0
        self._rows, self._bucket = 1, batch_bucket(1)
        self._on_trial = False
        self._reading = 0  # rounds that caught up, less those that did not
        self._stale: dict[int, int] = {}
        self._refresh: dict[int, int] = {}
        self._doubts = cost.doubts
        self._alone = True
        self._noted: list[RoundRecord] = []
        self._told = 0  # rounds, whatever they did
        self._lot = self._lot_of(1)
        self._window = _Window()
        self._plain = _Plain()

    def start(self) -> None:
        """A new request begins."""
        self._left *= 1.0 - 0.5 / self._rows

    def stance(self, signals: BatchSignals) -> Stance:
        """What the coming round may do."""
        self._alone = not signals.beside and not signals.prefill_tokens
        rows = signals.round_size
        if rows != self._rows:
            self._rows, self._bucket, self._lot = max(1, rows), batch_bucket(rows), self._lot_of(rows)
        if self._stance is Stance.OFF and self._left <= 0.0:
            self._stance, self._probed, self._window = Stance.PROBE, 0, _Window()
        if self._stance is Stance.RUN and self._settings.never_slower is not None:
            return Stance.PLAIN_ONCE if self._until_plain <= 0 else Stance.RUN
        return self._stance

    def after(self, record: RoundRecord) -> None:
        """Note a round."""
        drafted = record.drafting
        self._told += 1
        if self._cost.doubts != self._doubts:  # plain rounds measure best
            self._doubts = self._cost.doubts
            self._refresh.clear()
        # That of the rows that `stance` saw: those under other policies are not in the record.
        bucket = self._bucket
        if (
            self._alone
            and not drafted
            and not record.caught_up
            and (self._told % self._lot == 0 or self._plain.unsure(bucket))
        ):
            plain = self._cost.plain_seconds(len(record.rows), total(record.context))
            self._plain.add(bucket, record.total_seconds / plain)
        if drafted:
            self._stale[bucket] = self._stale.get(bucket, 0) + 1
        elif self._stale.get(bucket):
            self._stale[bucket] = 0
            due = 2 * self._refresh.get(bucket, self._FIRST_REFRESH)
            self._refresh[bucket] = min(due, self._settings.refresh_rounds)
        if self._stance is Stance.OFF:
            if not drafted:  # else it was decided before the switch, and is told of afterwards
                self._left -= total(record.emitted)
        elif self._stance is Stance.PROBE:
            self._after_probe(record, drafted)
        elif drafted:
            self._idle = 0
            if self._tells(record):
                self._noted.append(record)
                if self._due:
                    self._measure_noted()
                    self._judge()
        else:
            self._after_idle()

    def _after_probe(self, record: RoundRecord, drafted: bool) -> None:
        if record.caught_up and not drafted:
            return  # a long pause takes several rounds to catch up; the probe begins when it is over
        # The chooser may not want to draft now; a probe that never comes about must not last for ever.
        self._probed += 1
        if drafted and self._tells(record):
            self._measure(record)
        window, rounds = self._window, self._settings.probe.rounds
        declined = self._probed >= 4 * rounds and window.rounds < rounds
        if window.rounds < rounds and not declined and window.lost <= self._BUDGET_ROUNDS:
            return
        slow = self._settings.never_slower is not None and window.ratio < 1.0 - self._margin
        # A chooser that would not draft for long needs no guard now.
        if declined or not (slow or self._low(window)):
            self._stance, self._on_trial = Stance.RUN, True
        else:
            self._lengthen_wait()
            self._switch_off()
        self._window, self._losses = _Window(), 0

    def _lengthen_wait(self) -> None:
        probe = self._settings.probe
        self._wait = min(self._wait * probe.backoff, float(probe.longest))

    def _low(self, window: _Window) -> bool:
        floor = self._settings.disable_below_acceptance
        return floor is not None and window.first_acceptance < floor

    def _after_idle(self) -> None:
        # A chooser that stopped by itself is not to be blamed later for what made it stop.
        self._idle += 1
        if self._idle == self._IDLE_ROUNDS:
            self._noted.clear()
            self._window, self._losses = _Window(), 0

    def _switch_off(self) -> None:
        if self._on_trial:
            self._lengthen_wait()
        self._stance, self._left, self._losses = Stance.OFF, self._wait, 0
        self._on_trial = False

    @property
    def _until_plain(self) -> int:
        """Speculating rounds until one without renews the baseline."""
        return self._refresh.get(self._bucket, self._FIRST_REFRESH) - self._stale.get(self._bucket, 0)

    def _tells(self, record: RoundRecord) -> bool:
        """Whether a round's seconds are those of speculation."""
        if record.caught_up <= self._CATCH_UP:
            self._reading = max(0, self._reading - 1)
            return self._alone
        self._reading = min(self._reading + 1, 2 * self._READING)
        return self._alone and self._reading > self._READING

    def _lot_of(self, rows: int) -> int:
        """How many rounds of a batch are measured at a time."""
        rules, lot = self._settings.never_slower, self._LOT if rows < self._LARGE else self._LARGE_LOT
        return lot if rules is None else min(lot, rules.window_rounds)

    @property
    def _due(self) -> bool:
        """Whether what was noted is to be measured."""
        if self._lot < self._LARGE_LOT:
            return len(self._noted) >= self._lot
        return self._told % self._lot == 1 or len(self._noted) >= 2 * self._lot

    def _measure_noted(self) -> None:
        for record in self._noted:
            self._measure(record)
        self._noted.clear()

    def _measure(self, record: RoundRecord) -> None:
        rows = len(record.rows)
        plain = self._cost.plain_seconds(rows, total(record.context)) * self._plain.of(self._bucket)
        kept, drafting = number(record.accepted), number(record.drafted)
        self._window.add(total(record.emitted) / rows, record.total_seconds / plain, kept, drafting)

    def _judge(self) -> None:
        rules, window = self._settings.never_slower, self._window
        size = rules.window_rounds if rules else 32
        hopeless = rules is not None and window.lost > self._BUDGET_ROUNDS and window.ratio < 1.0 - 2.0 * self._margin
        if window.rounds < size and not hopeless:
            return
        # Beyond its own noise: unlucky rounds come in windows, too.
        slow = rules is not None and window.ratio + window.error < 1.0 - rules.margin
        if slow or self._low(window):
            self._losses += 1
            if self._losses >= (rules.losing_windows if rules else 1):
                self._switch_off()
        else:
            self._losses = 0
            if self._on_trial:
                self._on_trial, self._wait = False, float(self._settings.probe.after_tokens)
        self._window = _Window()

    @property
    def _margin(self) -> float:
        return self._settings.never_slower.margin if self._settings.never_slower else 0.0


class _Window:
    """Sums over some rounds, in units of plain rounds.

    The slowest round counts as `_ODD` times the second slowest at most: where the machine hesitates for a hundred
    rounds' time, as when another process takes the core, that says nothing of drafts.
    """

    _ODD = 2.0

    def __init__(self) -> None:
        self.rounds = 0
        self._earned = 0.0
        self._spent = 0.0
        self._squares = 0.0
        self._kept = 0
        self._drafting = 0
        self._slowest, self._second = (0.0, 0.0), 0.0  # seconds and tokens of the slowest, seconds of the next

    def add(self, earned: float, spent: float, kept: int, drafting: int) -> None:
        self.rounds += 1
        if spent > self._slowest[0]:
            self._settle(*self._slowest)
            self._slowest, self._second = (spent, earned), self._slowest[0]
        else:
            self._second = max(self._second, spent)
            self._settle(spent, earned)
        self._kept += kept
        self._drafting += drafting

    def _settle(self, spent: float, earned: float) -> None:
        self._earned += earned
        self._spent += spent
        self._squares += (earned - spent) ** 2

    @property
    def _sums(self) -> tuple[float, float, float]:
        """Earned, spent, and squares of what was lost, the slowest round with them."""
        spent, earned = self._slowest
        spent = min(spent, self._ODD * self._second) if self._second else spent
        return self._earned + earned, self._spent + spent, self._squares + (earned - spent) ** 2

    @property
    def ratio(self) -> float:
        earned, spent, _ = self._sums
        return earned / spent if spent else 1.0

    @property
    def error(self) -> float:
        """One standard error of `ratio`."""
        earned, spent, squares = self._sums
        if self.rounds < 2 or not spent:
            return 0.0
        spread = squares - (spent - earned) ** 2 / self.rounds
        return math.sqrt(max(spread, 0.0) * self.rounds / (self.rounds - 1)) / spent

    @property
    def lost(self) -> float:
        """0 after a single round: nobody can tell yet whether it was the machine's."""
        earned, spent, _ = self._sums
        return spent - earned if self.rounds > 1 else 0.0

    @property
    def first_acceptance(self) -> float:
        return self._kept / self._drafting if self._drafting else 1.0


class _Plain:
    """What plain rounds really took over what the cost table has them take, by batch size."""

    # The first rounds count in full, later ones as of so many.
    _LAST = 16

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, int]] = {}

    def add(self, bucket: int, ratio: float) -> None:
        """A plain round; one that hesitated counts as twice as long at most."""
        mean, count = self._known.get(bucket, (1.0, 0))
        count = min(count + 1, self._LAST)
        ratio = min(2.0 * mean, max(0.5 * mean, ratio))
        self._known[bucket] = mean + (ratio - mean) / count, count

    def unsure(self, bucket: int) -> bool:
        """Whether every plain round still tells much."""
        return self._known.get(bucket, (1.0, 0))[1] < self._LAST

    def of(self, bucket: int) -> float:
        """1 where none has run yet."""
        return self._known.get(bucket, (1.0, 0))[0]


class Dwell:
    """A row that changed its depth keeps it for `rounds` rounds, as far as its limit allows."""

    def __init__(self, rounds: int, rows: int, task_rounds: Mapping[int, int] | None = None) -> None:
        """`task_rounds`: by task number, where a task has its own."""
        most = max(task_rounds or {}, default=0)
        self._rounds: IntArray = np.full(most + 2, rounds, dtype=np.int64)  # by task; the last one: of all others
        for task, own in (task_rounds or {}).items():
            self._rounds[task] = own
        self._depth: IntArray = np.full(rows, -1, dtype=np.int64)
        self._age: IntArray = np.zeros(rows, dtype=np.int64)
        self._drafter: IntArray = np.zeros(rows, dtype=np.int64)

    def start(self, row: int) -> None:
        """A new request may begin at any depth."""
        self._depth[row] = -1

    def hold(self, signals: BatchSignals, choice: Choice) -> Choice:
        """The choice after dwelling. A depth is one of its drafter's: what another drafts meanwhile is let through."""
        rows, depths = signals.rows, choice.depths
        drafter = self._drafter[rows] * 0 if choice.drafter is None else choice.drafter
        held, known = self._depth[rows], self._depth[rows] >= 0
        dwelling = known & (self._age[rows] < self._rounds[np.minimum(signals.tasks, len(self._rounds) - 1)])
        other = dwelling & (depths > 0) & (drafter != self._drafter[rows])
        young = dwelling & ~other & (held != depths)
        kept = np.where(young | other, held, depths)
        self._age[rows] = np.where(kept == held, self._age[rows] + 1, 1)
        self._drafter[rows] = np.where(dwelling, self._drafter[rows], drafter)
        self._depth[rows] = kept
        if not young.any():
            return choice.within(signals.limits)
        reasons = np.where(young, int(Reason.DWELL), choice.reasons)
        depths = np.minimum(np.where(young, held, depths), signals.limits)
        drafter = np.where(young, self._drafter[rows], drafter)
        return replace(choice, depths=depths, reasons=reasons, drafter=drafter, expected=None)
