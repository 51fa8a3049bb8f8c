"""What speculation earned, as far as can be told: against plain decoding, and against every fixed depth.

A sink that puts rounds aside on the engine thread and works on them on a thread of its own. Knows rounds and requests;
it does not know who shows the figures, nor how policies decide.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from adaptspec.control.cost import CostTable
from adaptspec.control.labels import Names
from adaptspec.telemetry.choices import Calibration, Choices, Predictions
from adaptspec.telemetry.lots import Lot, RequestRows
from adaptspec.telemetry.mailbox import Mailbox
from adaptspec.telemetry.static_tiers import KNOWN_FROM, StaticTier, StaticTiers
from adaptspec.telemetry.totals import Totals
from adaptspec.types import Completion, Request, RoundRecord


@dataclass(frozen=True)
class TierEarnings:
    """A fixed depth over the rounds that were compared: seconds it would have taken for the same text.

    `guessed` is the share of that text that nothing observed vouches for; `known`: its drafter was seen often enough.
    """

    tier: StaticTier
    seconds: float
    guessed: float
    known: bool


@dataclass(frozen=True)
class EarningsSnapshot:
    """Everything since the start. Rates over a time of one's own are differences of two of these.

    `compared` seconds and tokens are of the rounds that no prompt was read in; `seconds` and `tokens` of them all.
    `tiers` begins with plain decoding, and is empty where nothing has been compared yet.
    """

    totals: Totals = field(default_factory=Totals)
    compared_tokens: int = 0
    compared_seconds: float = 0.0
    tiers: tuple[TierEarnings, ...] = ()
    drafts_by_drafter: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    depth_switches: int = 0
    drafter_switches: int = 0
    guard_switches: int = 0
    probes: int = 0
    probes_won: int = 0
    calibration: Calibration = field(default_factory=Calibration)
    dropped: int = 0

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
        """Plain decoding."""
        return self.tiers[0] if self.tiers else None

    @property
    def speedup(self) -> float:
        """Estimated goodput over plain decoding's; 1 before anything was compared."""
        return self.off.seconds / self.compared_seconds if self.off is not None and self.compared_seconds else 1.0

    @property
    def best_static(self) -> TierEarnings | None:
        """The fixed depth that would have been fastest, of those known."""
        return min((tier for tier in self.tiers if tier.known), key=lambda tier: tier.seconds, default=None)

    @property
    def regret(self) -> float:
        """(time of the policy - time of the best static tier) / time of the latter; below 0: faster than any."""
        best = self.best_static
        return self.compared_seconds / best.seconds - 1.0 if best is not None and best.seconds else 0.0

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
        self._tiers: StaticTiers | None = None
        self._choices: Choices | None = None
        self._tasks = Names(room=0)
        self._rows = RequestRows(1)
        self._lot = Lot()
        self._totals = Totals()
        self._predictions = Predictions()

    def begin(self, costs: CostTable, drafters: Sequence[str], max_rows: int, tasks: Names) -> None:
        """Say what the engine runs on, and start; what came before waits. `costs` may be corrected meanwhile."""
        self._drafters = tuple(drafters)
        self._tasks = tasks
        self._rows = RequestRows(max_rows)
        self._choices = Choices(self._rows.size, len(drafters))
        self._tiers = StaticTiers(costs, drafters, self._rows.size, tasks.size)
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
        tiers, choices = self._tiers, self._choices
        if tiers is None or choices is None:
            return EarningsSnapshot()
        self._box.work()
        with self._lock:
            return EarningsSnapshot(
                totals=self._totals,
                compared_tokens=tiers.tokens,
                compared_seconds=tiers.measured,
                tiers=_tiers(tiers),
                drafts_by_drafter=dict(zip(self._drafters, choices.drafts.tolist(), strict=True)),
                depth_switches=choices.depth_switches,
                drafter_switches=choices.drafter_switches,
                guard_switches=choices.guarding.switched_off,
                probes=choices.guarding.probes,
                probes_won=choices.guarding.came_back,
                calibration=self._predictions.calibration,
                dropped=self._box.dropped,
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
            self._tiers.start(row, self._tasks.number(request.speculation.task), len(request.prompt))
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


def _tiers(tiers: StaticTiers) -> tuple[TierEarnings, ...]:
    known = (True, *(n >= KNOWN_FROM for n in tiers.observed for _ in range(tiers.per_drafter)))
    tokens = max(tiers.tokens, 1)
    return tuple(
        TierEarnings(tier, seconds, guessed / tokens, sure)
        for tier, seconds, guessed, sure in zip(
            tiers.tiers, tiers.seconds.tolist(), tiers.guessed.tolist(), known, strict=True
        )
    )
