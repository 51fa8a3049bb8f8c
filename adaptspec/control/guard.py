"""What keeps a policy from ever losing for long, whatever its algorithm believes: overrules depths, picks none."""

from __future__ import annotations

import math
from enum import Enum
from typing import Annotated, NamedTuple

from pydantic import Field

from adaptspec.control.cost_model import CostModel, batch_bucket
from adaptspec.control.language.schema import Part, Short, without_default
from adaptspec.control.limits import BatchLimits
from adaptspec.control.policy import BatchSignals
from adaptspec.rounds import RoundRecord

# In the ratio of a window a round takes at most so many times what it earns: the rest is a stall of the machine.
_WORST = 2.0
# A window or probe of at least `_MIN_ROUNDS` rounds that has lost the time of so many plain rounds is judged at once.
_BUDGET_ROUNDS, _MIN_ROUNDS = 4.0, 4
# Rounds with drafts that a probe takes, and the longest wait for one, in emitted tokens.
_PROBE_ROUNDS, _LONGEST_WAIT = 6, 65_536.0
# A baseline is renewed by a plain round: first after `_FIRST_RENEWAL` drafting rounds, then after twice as many each
# time, up to `_LAST_RENEWAL`; from the second time on not before it loses at most `_RENEWAL_SHARE` of the time.
_FIRST_RENEWAL, _LAST_RENEWAL, _RENEWAL_SHARE = 8, 256, 0.005
_MAX_GROWTH = 8  # windows whose rounds are judged together while they look lost, but not beyond their noise
# A baseline is a mean over about so many plain rounds; a plain round is priced once in so many, since contexts grow.
_PLAIN_ROUNDS, _PRICED_ROUNDS = 16, 16


class NeverSlowerSpec(Part):
    """Switch speculation off while it delivers less than (1 - margin) x plain decoding."""

    margin: float = Field(
        default=0.03, ge=0.0, lt=1.0, description="A window is lost below (1 - margin) x plain decoding."
    )
    window_rounds: int = Field(default=16, ge=1, le=10_000, description="Drafting rounds that are judged together.")
    losing_windows: int = Field(default=2, ge=1, le=1000, description="Lost windows in a row that switch it off.")


class ProbeSpec(Part):
    """When speculation that is off is tried again."""

    after_tokens: int = Field(default=64, ge=1, le=1_000_000, description="Tokens to emit before the first try.")
    backoff: float = Field(default=2.0, ge=1.0, le=100.0, description="Each try in vain makes the wait so much longer.")


class GuardSpec(BatchLimits):
    """What keeps a policy from losing for long."""

    never_slower: Annotated[NeverSlowerSpec | None, Short()] = Field(
        default=None,
        json_schema_extra=without_default,
        description="Measure what is delivered against plain decoding; off where it is less. Absent: on, but for "
        "static, which runs at its depth, and slo, which may give up throughput for a request's pace.",
    )
    probe: Annotated[ProbeSpec, Short()] = Field(
        default=ProbeSpec(), description="How speculation that was switched off comes back."
    )

    def build(self, cost: CostModel) -> Guard | None:
        """The guard; None without `never_slower`. Where a policy leaves it out, it has been filled in before."""
        return None if self.never_slower is None else Guard(self, cost)


class Mode(Enum):
    """What the guard lets a round do."""

    RUN = "run"
    OFF = "off"
    PROBE = "probe"
    PLAIN_ONCE = "plain once"  # a single round without speculation, to renew the baseline


class Guarded(NamedTuple):
    """What the guard decided of a round: what the round may do, and the baseline that it is compared with."""

    mode: Mode
    baseline: Baseline
    rows: int  # 0 where prompts or rows of other policies share the round: its seconds are not comparable


class Guard:
    """Speculation is switched off where it is measurably slower than plain decoding; off is recoverable.

    States: running, off, probing. Running becomes off when windows of delivered goodput (emitted tokens over
    seconds, sums) fall below plain decoding's at the same batch size. Off becomes probing after a number of emitted
    tokens that grows each time, until a window while running is not lost: luck in the few rounds of a probe starts
    no oscillation. A window or probe is judged early once it has cost as much as it may, so that even a hopeless
    draft costs little. A new request shortens what is left of the wait by half its share of the batch: what lost on the
    last may pay on this one.

    A round is booked under the mode and baseline of its decision, even if its record comes late. A round that was
    decided before a switch is not counted after it.

    Nothing of it is kept over a restart: measuring again costs the time of about a dozen plain rounds, while a stale
    measurement, of another hour or machine, could cost far more.
    """

    def __init__(self, spec: GuardSpec, cost: CostModel) -> None:
        assert spec.never_slower is not None, "there is no guard without rules"
        self._rules, self._probe = spec.never_slower, spec.probe
        self._cost = cost
        self._mode = Mode.RUN
        self._wait = float(spec.probe.after_tokens)
        self._left = 0.0
        self._probed = 0
        self._losses = 0
        self._rows = 0
        self._gain = 0.0  # of drafting rounds over plain ones, in the last window
        self._resets = cost.resets
        self._window = _Window()
        self._priced, self._price_age = (0, 0.0), 0  # rows, and seconds of a plain round of them; rounds
        self._baselines: dict[int, Baseline] = {}
        self._baseline = Baseline()

    def start(self, row: int) -> None:  # noqa: ARG002 - whichever row it is
        self._priced = 0, 0.0  # its context may be another
        self._left *= 1.0 - 0.5 / max(1, self._rows)

    def decide(self, signals: BatchSignals) -> Guarded:
        """What the coming round may do; `learn` takes it back with the round's record."""
        if signals.round_size != self._rows:
            self._rows = signals.round_size
            self._baseline = self._baselines.setdefault(batch_bucket(self._rows), Baseline())
        if self._mode is Mode.OFF and self._left <= 0.0:
            self._mode, self._probed, self._window = Mode.PROBE, 0, _Window()
        mode = self._mode
        if mode is Mode.RUN and self._baseline.due(self._gain):
            mode, self._baseline.stale = Mode.PLAIN_ONCE, 0  # once, even if the next is decided before its outcome
            self._baseline.renewals += 1
        rows = 0 if signals.other_rows or signals.prefill_tokens else len(signals.rows)
        return Guarded(mode, self._baseline, rows)

    def learn(self, record: RoundRecord, decided: Guarded) -> None:
        """Learn from a round. It counts for the batch that `decide` saw: rows of other policies are not recorded."""
        if self._cost.resets != self._resets:  # prices may have changed: renew every baseline soon
            self._resets = self._cost.resets
            for baseline in self._baselines.values():
                baseline.rounds, baseline.renewals = min(baseline.rounds, 1), 0
        drafted = record.drafting
        if drafted:
            decided.baseline.stale += 1
        else:
            self._after_plain(record, decided)
        if decided.mode is not self._mode:
            return
        if self._mode is Mode.OFF:
            self._left -= int(record.emitted.sum())
            return
        if drafted and len(record.rows) == decided.rows:
            self._measure(record, decided.baseline)
        if self._mode is Mode.PROBE:
            self._after_probe(drafted or not record.caught_up)
        elif drafted:
            self._judge()

    def _measure(self, record: RoundRecord, baseline: Baseline) -> None:
        window = self._window
        plain = self._plain_seconds(record) * baseline.ratio
        window.add(int(record.emitted.sum()) / len(record.rows), record.timing.total / plain)

    def _plain_seconds(self, record: RoundRecord) -> float:
        rows, self._price_age = len(record.rows), self._price_age + 1
        if rows != self._priced[0] or self._price_age % _PRICED_ROUNDS == 0:
            self._priced = rows, self._cost.plain_seconds(rows, int(record.context.sum()))
        return self._priced[1]

    def _after_plain(self, record: RoundRecord, decided: Guarded) -> None:
        if decided.baseline.stale or decided.mode is Mode.PLAIN_ONCE:
            # This round renews the baseline: price it afresh, not by a cached price.
            decided.baseline.stale, self._priced = 0, (0, 0.0)
        if len(record.rows) == decided.rows and not record.caught_up:
            decided.baseline.add(record.timing.total / self._plain_seconds(record))

    def _after_probe(self, begun: bool) -> None:
        # A long pause takes several rounds to catch up; the probe begins when it is over.
        self._probed += begun
        window = self._window
        # The algorithm may not want to draft now; a probe that never comes about must not last for ever.
        declined = self._probed >= 4 * _PROBE_ROUNDS and window.rounds < _PROBE_ROUNDS
        if declined:  # an algorithm that would not draft for long needs no guard now
            self._mode = Mode.RUN
        elif window.rounds < _PROBE_ROUNDS and not window.hopeless:
            return
        elif self._lost(window):
            self._switch_off()
        else:
            self._mode = Mode.RUN
        self._window, self._losses = _Window(), 0

    def _judge(self) -> None:
        window = self._window
        if window.rounds < self._rules.window_rounds and not window.hopeless:
            return
        self._gain = window.ratio - 1.0
        lost = self._lost(window)
        looks_lost = window.ratio < 1.0 - self._rules.margin
        if looks_lost and not lost and window.rounds < _MAX_GROWTH * self._rules.window_rounds:
            return
        self._window = _Window()
        if not lost:
            self._losses, self._wait = 0, float(self._probe.after_tokens)
            return
        self._losses += 1
        if self._losses >= self._rules.losing_windows:
            self._switch_off()

    def _lost(self, window: _Window) -> bool:
        # Beyond its own noise, by two standard errors: unlucky rounds come in windows, too.
        return window.ratio + 2.0 * window.error < 1.0 - self._rules.margin

    def _switch_off(self) -> None:
        self._mode, self._left, self._losses = Mode.OFF, self._wait, 0
        self._wait = min(self._wait * self._probe.backoff, _LONGEST_WAIT)


class _Window:
    """Sums over some rounds, in units of plain rounds."""

    def __init__(self) -> None:
        self.rounds = 0
        self.lost = 0.0  # spent less earned, stalls included
        self._earned = 0.0
        self._spent = 0.0
        self._squares = 0.0

    def add(self, earned: float, spent: float) -> None:
        """Add a round. In the ratio, one that stalled is at worst half as good as plain decoding."""
        self.rounds += 1
        self.lost += spent - earned
        spent = min(spent, _WORST * earned)
        self._earned += earned
        self._spent += spent
        self._squares += (earned - spent) ** 2

    @property
    def hopeless(self) -> bool:
        """Whether it has lost so much that it is judged early; in fewer rounds it may have been a stall."""
        return self.rounds >= _MIN_ROUNDS and self.lost > _BUDGET_ROUNDS

    @property
    def ratio(self) -> float:
        return self._earned / self._spent if self._spent else 1.0

    @property
    def error(self) -> float:
        """One standard error of `ratio`: about 1 where a single round took nearly all the time."""
        if self.rounds < 2 or not self._spent:
            return 0.0
        spread = self._squares - (self._spent - self._earned) ** 2 / self.rounds
        return math.sqrt(max(spread, 0.0) * self.rounds / (self.rounds - 1)) / self._spent


class Baseline:
    """What plain rounds really took over what the cost model predicts, at batch sizes that are alike."""

    def __init__(self) -> None:
        self.ratio = 1.0
        self.rounds = 0  # that it rests on
        self.stale = 0  # rounds with drafts since the last plain one
        self.renewals = 0

    def add(self, ratio: float) -> None:
        """Add a plain round, as half to twice the mean: one that stalled counts as twice as long at most."""
        self.rounds = min(self.rounds + 1, _PLAIN_ROUNDS)
        self.ratio += (min(2.0 * self.ratio, max(0.5 * self.ratio, ratio)) - self.ratio) / self.rounds

    def due(self, gain: float) -> bool:
        """Whether a plain round is to be run where drafting rounds earn `gain` more than plain ones."""
        if not self.renewals:
            return self.stale >= _FIRST_RENEWAL
        wait = min(_FIRST_RENEWAL << self.renewals, _LAST_RENEWAL)
        return self.stale >= max(wait, gain / _RENEWAL_SHARE)
