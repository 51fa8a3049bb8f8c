"""What watching costs: microseconds per round by trace level, and first tokens beside collectors that misbehave.

The first is what the engine thread pays to tell the store of a round, and what all threads together do; for the second
see `collectors`.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adaptspec.bench.collectors import COLLECTORS, Load, begun, collector, run_collectors
from adaptspec.bench.workloads import Workloads
from adaptspec.control.cost_model import CostModel
from adaptspec.control.cost_profile import CostProfile
from adaptspec.decision import Reason
from adaptspec.drafters import available_drafters
from adaptspec.request import Request
from adaptspec.results import Completion, FinishReason, SpeculationStats, Timings
from adaptspec.rounds import DraftWork, RoundRecord, RoundWork, Timing
from adaptspec.tables import Table
from adaptspec.telemetry.earnings import Earnings
from adaptspec.telemetry.live_feed import LiveFeed
from adaptspec.telemetry.metrics import Metrics
from adaptspec.telemetry.otlp_export import SpanQueue, TraceLevel, TraceSettings
from adaptspec.telemetry.request_store import RequestStore
from adaptspec.telemetry.tracing import Tracing

BATCHES = (1, 16)
DRAFTERS = available_drafters(draft=True)
# Who reads the store. Rows but the last say what one reader costs.
READERS = ("metrics", "earnings", "live", *(f"traces: {level.value}" for level in TraceLevel), "all")
_TINY = CostProfile((1, 16), (1, 8), ((1e-3, 2e-3), (3e-3, 9e-3)), overhead=1e-4)


@dataclass(frozen=True)
class TelemetrySettings:
    """How many rounds are timed, in lots that are emptied in between; what is served beside each collector."""

    rounds: int = 512
    lots: int = 20
    load: Load = field(default_factory=Load)

    @property
    def steps(self) -> int:
        """How often progress is told."""
        return len(BATCHES) * len(READERS) + len(COLLECTORS) * -(-self.load.requests // self.load.block)


def run_telemetry(workloads: Workloads, settings: TelemetrySettings, tick: Callable[[], None]) -> dict[str, Any]:
    """Both parts, the second over prompts of these workloads; `tick` is called after each row of them.

    Raises:
        ModelError, ConfigError: the bundled pair cannot be served.
    """
    rows = []
    for batch in BATCHES:
        for reader in READERS:
            with collector("well") as url:
                rows.append({"batch": batch, "reader": reader, **_cost(reader, url, batch, settings)})
            tick()
    return {
        "benchmark": "telemetry",
        "per_round": rows,
        "collectors": asyncio.run(run_collectors(workloads, settings.load, tick)),
    }


def _start(reader: str, store: RequestStore, url: str) -> Tracing | None:
    """Have it read the store."""
    if reader in ("metrics", "all"):
        Metrics(store)
    if reader in ("earnings", "all"):
        Earnings(store).begin(CostModel(_TINY), DRAFTERS, max(BATCHES), 1)
    if reader in ("live", "all"):
        LiveFeed(store)
    kind, _, level = reader.partition(": ")
    if kind not in ("traces", "all"):
        return None
    settings = TraceSettings(TraceLevel(level or TraceLevel.PHASE), url)
    return Tracing(store, settings, SpanQueue(settings.exporter()), "bench") if settings.enabled else None


def _cost(reader: str, url: str, batch: int, settings: TelemetrySettings) -> dict[str, float]:
    """Microseconds per round of the thread that emits, and of all work that follows, per row of the round."""
    records, emitting, working = _rounds(batch, settings.rounds), [], 0.0
    requests = [Request(name, (1,) * 64) for name in records[0].request_ids]
    store = RequestStore(pause=3600.0)
    tracing = _start(reader, store, url)
    store.start(batch, DRAFTERS)
    for lot in range(settings.lots):
        traces = [begun(tracing, request) for request in requests if tracing is not None]
        for request in requests:
            store.started(request)
        began = time.perf_counter()
        for record in records:
            store.emit(record)
        emitting.append((time.perf_counter() - began) / len(records))
        for request in requests:
            store.finished(request, _done(request))
        for trace in traces:
            trace.end(200, None)
        began = time.process_time()
        store.settle()
        working += time.process_time() - began if lot else 0.0
    store.close()
    if tracing is not None:
        tracing.close()
    rounds = settings.rounds * max(settings.lots - 1, 1)
    return {
        "engine_us_per_round": statistics.median(emitting) * 1e6,
        "engine_us_per_row": statistics.median(emitting) * 1e6 / batch,
        "elsewhere_us_per_row": working / rounds / batch * 1e6,
    }


def _rounds(batch: int, count: int) -> list[RoundRecord]:
    rng = np.random.default_rng(0)
    ids, rows = tuple(f"r{i}" for i in range(batch)), np.arange(batch)
    made = []
    for number in range(count):
        drafted = rng.integers(0, 4, batch)
        accepted = rng.integers(0, drafted + 1)
        sure = np.where(np.arange(3) < drafted[:, None], 0.8, np.nan)
        reasons = np.where(drafted > 0, int(Reason.POLICY), int(Reason.OFF))
        drafts = (DraftWork(DRAFTERS[0], batch, (batch,) * 3),)
        made.append(
            RoundRecord(
                number, ids, rows, drafted, reasons, rows * 0, drafted, accepted, accepted + 1, rows * 0 + 64 + number,
                sure, sure, RoundWork(batch, batch + int(drafted.sum()), drafts=drafts), Timing(4e-4, 1e-3, 1.6e-3),
            )
        )  # fmt: skip
    return made


def _done(request: Request) -> Completion:
    now = time.monotonic()
    times = Timings(now - 1.0, now - 0.9, now - 0.8, now)
    return Completion(request.id, "", (1,) * 64, 64, FinishReason.LENGTH, SpeculationStats("bench"), times)


def telemetry_report(result: dict[str, Any]) -> list[Table | str]:
    """Both parts as tables."""
    costs = Table(*result["per_round"][0], title="microseconds per round (and per row of it)", keys=2)
    for row in result["per_round"]:
        costs.add_row(*map(_cell, row.values()))
    columns = next(iter(result["collectors"].values()))
    first = Table("collector", *columns, title="time to first token (ratios: median, lowest-highest part of the run)")
    for name, row in result["collectors"].items():
        first.add_row(name, *map(_cell, row.values()))
    return [costs, first]


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return f"{value['median']:.2f} ({value['lowest']:.2f}-{value['highest']:.2f})"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
