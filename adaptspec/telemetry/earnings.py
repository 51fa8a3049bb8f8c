"""What speculation earned, as far as can be told: against plain decoding, and against every fixed depth.

A sink that puts rounds aside on the engine thread and works on them on a thread of its own. Knows rounds and requests;
it does not know who shows the figures, nor how policies decide.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from adaptspec.control.cost import CostTable
from adaptspec.telemetry.choices import Calibration, Choices, Predictions
from adaptspec.telemetry.lots import Lot, RequestRows
from adaptspec.telemetry.bounded_queue import Mailbox
from adaptspec.telemetry.static_tiers import StaticTiers, TierEarnings
from adaptspec.telemetry.totals import Totals
from adaptspec.types import Completion, Request, RoundRecord


@dataclass(frozen=True)
class Estimate:
    """A ratio, and between which values it lies as far as is known (two standard errors)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class EarningsSnapshot:
    """Everything since the start. Rates over a time of one's own are differences of two of these.

    `tiers` begins with plain decoding, and is empty before the engine runs. `unsure`: what the cost table says and
    what rounds take disagree, so that costs are being measured again; `doubts` counts how often that began. The table
    was `measured` at that time, in seconds since 1970.
    """

    totals: Totals = field(default_factory=Totals)
    tiers: tuple[TierEarnings, ...] = ()
    drafts_by_drafter: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    depth_switches: int = 0
    drafter_switches: int = 0
    guard_switches: int = 0
    probes: int = 0
    probes_won: int = 0
    calibration: Calibration = field(default_factory=Calibration)
    dropped: int = 0
    unsure: bool = False
    doubts: int = 0
    measured: float = math.nan

    @property
    def saved_tokens(self) -> int:
        """Drafted tokens that were emitted: each is a row of a plain round that was not needed."""
        return self.totals.accepted_tokens

    @property
    def wasted_tokens(self) -> int:
        """Drafted tokens that were not."""
        return self.totals.drafted_tokens - self.totals.accepted_tokens

    @property
    def off(self) -> TierEarnings | None:
        """Plain decoding, as soon as enough plain rounds have run."""
        return self.tiers[0] if self.tiers and self.tiers[0].known else None

    @property
    def speedup(self) -> Estimate | None:
        """Goodput over plain decoding's, over rounds compared with it; None: not known yet."""
        if self.off is None:
            return None
        seconds, error, against = self.off.seconds, self.off.error, self.off.against
        return Estimate(seconds / against, (seconds - error) / against, (seconds + error) / against)

    @property
    def best_static(self) -> TierEarnings | None:
        """The fixed depth that would have been fastest, of those known; None while it could only be plain decoding."""
        known = [tier for tier in self.tiers if tier.known]
        drafting = any(tier.tier.depth for tier in known)
        return min(known, key=lambda tier: tier.seconds / tier.against) if drafting else None

    @property
    def regret(self) -> Estimate | None:
        """(time of the policy - time of the best static tier) / time of the latter; below 0: faster than any."""
        best = self.best_static
        if best is None:
            return None
        took = (best.seconds, best.seconds + best.error, best.seconds - best.error)
        return Estimate(*(best.against / seconds - 1.0 for seconds in took))

    @property
    def tier_share(self) -> dict[str, float]:
        """Share of row-rounds by decided depth, by label; depths that never occurred are left out."""
        count = int(self.totals.depths.sum())
        return {depth: n / count for depth, n in self.totals.labelled_depths if n}


class Earnings:
    """A `Sink`. `snapshot` may be asked from any thread, and says everything up to the round that ended last."""

    def __init__(self, *, waiting: int = 20_000, pause: float = 1.0) -> None:
        self._box: Mailbox[RoundRecord | Request | Completion] = Mailbox(
            "earnings", self._note, waiting=waiting, pause=pause
        )
        self._lock = threading.Lock()
        self._drafters: tuple[str, ...] = ()
        self._costs: CostTable | None = None
        self._tiers: StaticTiers | None = None
        self._choices: Choices | None = None
        self._rows = RequestRows(1)
        self._lot = Lot()
        self._totals = Totals()
        self._predictions = Predictions()

    def begin(self, costs: CostTable, drafters: Sequence[str], max_rows: int, tasks: int) -> None:
        """Say what the engine runs on, and start; what came before waits. `costs` is asked for its doubts only.

        `tasks` counts the known tasks and task 0, unknown.
        """
        self._costs = costs
        self._drafters = tuple(drafters)
        self._rows = RequestRows(max_rows)
        self._choices = Choices(self._rows.size, len(drafters))
        self._tiers = StaticTiers(drafters, self._rows.size, tasks, reading=costs.profile.drafters)
        self._box.start()

    def started(self, request: Request) -> None:
        """One request has been admitted."""
        self._box.put(request)

    def emit(self, record: RoundRecord) -> None:
        """One round has ended."""
        self._box.put(record)

    def finished(self, request: Request, completion: Completion) -> None:  # noqa: ARG002 (the Sink protocol)
        """One request has ended."""
        self._box.put(completion)

    def close(self) -> None:
        """Take what is waiting into account, and end the thread."""
        self._box.close()

    def snapshot(self) -> EarningsSnapshot:
        """All that is known now."""
        tiers, choices, costs = self._tiers, self._choices, self._costs
        if tiers is None or choices is None or costs is None:
            return EarningsSnapshot()
        self._box.work()
        with self._lock:
            return EarningsSnapshot(
                totals=self._totals,
                tiers=tiers.earnings,
                drafts_by_drafter=dict(zip(self._drafters, choices.drafts.tolist(), strict=True)),
                depth_switches=choices.depth_switches,
                drafter_switches=choices.drafter_switches,
                guard_switches=choices.guarding.switched_off,
                probes=choices.guarding.probes,
                probes_won=choices.guarding.came_back,
                calibration=self._predictions.calibration,
                dropped=self._box.dropped,
                unsure=costs.unsure,
                doubts=costs.doubts,
                measured=costs.measured,
            )

    def _note(self, entries: Sequence[RoundRecord | Request | Completion]) -> None:
        with self._lock:
            for entry in entries:
                if isinstance(entry, Request):
                    self._start(entry)
                elif isinstance(entry, Completion):
                    self._rows.leave(entry.request_id)
                else:
                    self._lot.add(entry, self._rows)
            self._add_lot()

    def _start(self, request: Request) -> None:
        if self._rows.full:
            self._add_lot()
        row = self._rows.enter(request.id)
        if self._tiers is not None and self._choices is not None:
            self._tiers.start(row, len(request.prompt))
            self._choices.start(row)

    def _add_lot(self) -> None:
        lot, self._lot = self._lot, Lot()
        self._rows.renew()
        if not lot.records:
            return
        self._totals = self._totals.plus(lot.records)
        self._predictions.add(lot.records)
        if lot.decoding and self._tiers is not None and self._choices is not None:
            rows = lot.rows
            self._choices.add(lot.decoding, rows)
            self._tiers.add(lot.decoding, rows)
