"""Estimates what speculation earned: against plain decoding, and against every fixed depth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from adaptspec.arrays import IntArray
from adaptspec.control.cost_model import CostModel
from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.guard_events import GuardEvents
from adaptspec.telemetry.live_schema import Compared
from adaptspec.telemetry.request_store import Batch, RequestStore, Started, row_count
from adaptspec.telemetry.static_tiers import StaticTiers, TierEarnings
from adaptspec.telemetry.totals import Totals, by_proposer, gathered

_SWITCHES = ("depth_switches", "drafter_switches", "guard_switches", "probes", "probes_won")


@dataclass(frozen=True)
class Estimate:
    """A ratio, and between which values it lies as far as is known (two standard errors)."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return {name: round(value, 4) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class ForecastError:
    """What policies that estimate expected, and what came, over the rounds that they said something of.

    Tokens: by expected goodput over the seconds that rounds took. Accepted: drafted tokens, by row.
    """

    predicted_tokens: float = 0.0
    realised_tokens: int = 0
    predicted_accepted: float = 0.0
    realised_accepted: int = 0

    @property
    def goodput_ratio(self) -> float:
        """Predicted goodput over realised; above 1: too hopeful. 1 before anything was predicted."""
        return self.predicted_tokens / self.realised_tokens if self.realised_tokens else 1.0

    def plus(self, records: Sequence[RoundRecord]) -> ForecastError:
        """With some more rounds. The goodput of one that reads a prompt is left out: its time is the prompt's, too."""
        told = [(record, record.expected) for record in records if record.expected is not None]
        if not told:
            return self
        timed = [(r, e) for r, e in told if not r.prefill_tokens and not math.isnan(e.goodput)]
        expected = np.concatenate([one.accepted for _, one in told])
        drafted = np.concatenate([record.drafted for record, _ in told]) > 0
        came = np.concatenate([np.minimum(record.accepted, record.emitted) for record, _ in told])
        counted = drafted & ~np.isnan(expected)
        return ForecastError(
            self.predicted_tokens + sum(one.goodput * record.timing.total for record, one in timed),
            self.realised_tokens + int(sum(record.emitted.sum() for record, _ in timed)),
            self.predicted_accepted + float(expected[counted].sum()),
            self.realised_accepted + int(came[counted].sum()),
        )


class Switches:
    """Counts changes of depth and drafter within requests, by their rows, and what guards did."""

    def __init__(self, rows: int, drafters: int) -> None:
        self._depth: IntArray = np.full(rows, -1, dtype=np.int64)
        self._drafter: IntArray = np.full(rows, -1, dtype=np.int64)
        # By drafter: row-rounds that it was to draft for, tokens that it proposed, and those of them that were emitted.
        self.drafts, self.proposed, self.kept = np.zeros((3, drafters), dtype=np.int64)
        self.of_depth = 0
        self.of_drafter = 0
        self.guarding = GuardEvents()

    def start(self, row: int) -> None:
        self._depth[row] = self._drafter[row] = -1

    def add(self, records: Sequence[RoundRecord], rows: IntArray) -> None:
        """Rounds in order, each with rows; `rows` [N] are their requests' own."""
        depths, drafter, drafted = (gathered(records, name) for name in ("depths", "drafter", "drafted"))
        self.of_depth += _changes(self._depth, rows, depths)
        on = depths > 0
        self.of_drafter += _changes(self._drafter, rows[on], drafter[on])
        self.drafts += np.bincount(drafter[drafted > 0], minlength=len(self.drafts))
        proposed, kept = by_proposer(records, len(self.drafts))
        self.proposed += proposed
        self.kept += kept
        for record in records:
            self.guarding.add(record.reasons.tolist())


def _changes(last: IntArray, rows: IntArray, values: IntArray) -> int:
    """How often a row's value is another than the one before it; -1 is none yet. Notes the latest in `last`."""
    order = np.argsort(rows, kind="stable")
    rows, values = rows[order], values[order]
    before = values.copy()
    before[1:] = values[:-1]
    first = np.ones(len(rows), dtype=np.bool_)
    first[1:] = rows[1:] != rows[:-1]
    before[first] = last[rows[first]]
    last[rows] = values
    return int(np.count_nonzero((before >= 0) & (before != values)))


@dataclass(frozen=True)
class EarningsSnapshot:
    """Everything since the start. Rates over a time of one's own are differences of two of these.

    `tiers` begins with plain decoding, and is empty before the engine runs. `uncertain`: rounds contradict the
    cost model, which learns anew; `resets` counts how often that began.
    """

    totals: Totals = field(default_factory=Totals)
    tiers: tuple[TierEarnings, ...] = ()
    drafts_by_drafter: Mapping[str, int] = field(default_factory=dict)
    nodes_by_drafter: Mapping[str, int] = field(default_factory=dict)  # whoever proposed each
    accepted_by_drafter: Mapping[str, int] = field(default_factory=dict)
    depth_switches: int = 0
    drafter_switches: int = 0
    guard_switches: int = 0
    probes: int = 0
    probes_won: int = 0
    forecast: ForecastError = field(default_factory=ForecastError)
    dropped: int = 0
    uncertain: bool = False
    resets: int = 0

    @property
    def saved_tokens(self) -> int:
        """Drafted tokens that were emitted: each is a row of a plain round that was not needed."""
        return self.totals.accepted_tokens

    @property
    def wasted_tokens(self) -> int:
        """Drafted tokens, on whatever branch, that were verified and not emitted."""
        return self.totals.nodes - self.totals.accepted_tokens

    @property
    def off(self) -> TierEarnings | None:
        """Plain decoding, as soon as enough plain rounds have run."""
        return self.tiers[0] if self.tiers and self.tiers[0].known else None

    @property
    def speedup(self) -> Estimate | None:
        """Predicted time without speculation over predicted time of the rounds that ran; None: not known yet.

        Of rounds that are compared with plain decoding. Exactly 1 where nothing was drafted.
        """
        if self.off is None:
            return None
        seconds, error, against = self.off.seconds, self.off.error, self.off.against
        return Estimate(seconds / against, (seconds - error) / against, (seconds + error) / against)

    @property
    def best_static(self) -> TierEarnings | None:
        """The fixed depth that would have been fastest, of those known.

        None while nothing was drafted, or while no depth but plain decoding is known.
        """
        known = [tier for tier in self.tiers if tier.known]
        drafting = self.totals.drafted_tokens > 0 and any(tier.tier.depth for tier in known)
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

    def compared_since(self, before: EarningsSnapshot) -> Compared:
        """Sums since an earlier snapshot. Where nothing was drafted since then, no fixed depth is compared with."""
        earlier = {one.tier: one for one in before.tiers}
        drafted = self.totals.drafted_tokens > before.totals.drafted_tokens

        def more(one: TierEarnings | None, *fields: str) -> list[float]:
            old = earlier.get(one.tier) if one else None
            return [round(getattr(one, field, 0.0) - getattr(old, field, 0.0), 6) for field in fields]

        best = self.best_static if drafted else None
        return Compared(*more(self.off, "tokens", "against", "seconds"), *more(best, "against", "seconds"))

    def to_json(self) -> dict[str, Any]:
        """Plain data for the live feed. What is not known yet is None."""
        speedup, best, regret = self.speedup, self.best_static, self.regret
        return {
            "speedup": speedup and speedup.to_json(),
            "best_static": best and {"depth": best.tier.depth, "drafter": best.tier.drafter},
            "regret": regret and regret.to_json(),
            "costs_unsure": self.uncertain,
            **{name: getattr(self, name) for name in ("saved_tokens", "wasted_tokens", *_SWITCHES)},
            "predicted_over_realised": round(self.forecast.goodput_ratio, 4),
        }


class Earnings:
    """Adds up what rounds earned. `snapshot` may be asked from any thread."""

    def __init__(self, store: RequestStore) -> None:
        self._store = store
        self._drafters: tuple[str, ...] = ()
        self._costs: CostModel | None = None
        self._tiers: StaticTiers | None = None
        self._switches: Switches | None = None
        self._forecast = ForecastError()
        store.counts(self._take)

    def begin(self, costs: CostModel, drafters: Sequence[str], max_rows: int, tasks: int) -> None:
        """Before the store starts. Of `costs` only its resets are read; `tasks` counts task 0, unknown, as well."""
        rows = row_count(max_rows)
        self._costs = costs
        self._drafters = tuple(drafters)
        self._switches = Switches(rows, len(drafters))
        self._tiers = StaticTiers(drafters, rows, tasks, reading=costs.profile.drafters)

    def snapshot(self) -> EarningsSnapshot:
        tiers, switches, costs = self._tiers, self._switches, self._costs
        if tiers is None or switches is None or costs is None:
            return EarningsSnapshot()
        with self._store.lock:
            return EarningsSnapshot(
                totals=self._store.totals,
                tiers=tiers.earnings,
                drafts_by_drafter=self._named(switches.drafts),
                nodes_by_drafter=self._named(switches.proposed),
                accepted_by_drafter=self._named(switches.kept),
                depth_switches=switches.of_depth,
                drafter_switches=switches.of_drafter,
                guard_switches=switches.guarding.switched_off,
                probes=switches.guarding.probes,
                probes_won=switches.guarding.came_back,
                forecast=self._forecast,
                dropped=self._store.missing(self._take),
                uncertain=costs.uncertain,
                resets=costs.resets,
            )

    def _named(self, counts: IntArray) -> dict[str, int]:
        return dict(zip(self._drafters, counts.tolist(), strict=True))

    def _take(self, batch: Batch) -> None:
        tiers, switches = self._tiers, self._switches
        if tiers is None or switches is None:
            return
        for event in batch.events:
            if isinstance(event, Started):
                request = event.record.request
                declined = request.speculation.max_depth == 0
                tiers.start(event.record.row, len(request.prompt), declined=declined)
                switches.start(event.record.row)
        self._forecast = self._forecast.plus(batch.records)
        decoding = [one for one in batch.rounds if one.requests]
        if decoding:
            records = [one.round for one in decoding]
            owners = [self._store.stray if one is None else one.row for each in decoding for one in each.requests]
            rows = np.array(owners, dtype=np.int64)
            switches.add(records, rows)
            tiers.add(records, rows)
