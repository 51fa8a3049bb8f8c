"""What watching costs, as `adaptspec bench telemetry` says it: every row is there, and figures are figures."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from adaptspec.bench import telemetry_cost as module
from adaptspec.bench.collectors import COLLECTORS, Load, collector, p99_over
from adaptspec.bench.telemetry_cost import BATCHES, TelemetrySettings, run_telemetry, telemetry_report
from adaptspec.bench.workloads import Workloads, read_workloads
from adaptspec.tables import Table
from adaptspec.telemetry.otlp_export import TraceLevel


def test_every_level_and_collector_has_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emitting is timed beside each reader, and what follows."""
    told: list[int] = []

    async def unserved(workloads: Workloads, load: Load, tick: object) -> dict[str, dict[str, float]]:
        ratio = p99_over([1.0] * 100 + [3.0] * 100, [1.0] * 100 + [2.0] * 100)
        return {name: {"p99_ms": float(load.requests * len(workloads)), "p99_over_none": ratio} for name in COLLECTORS}

    monkeypatch.setattr(module, "run_collectors", unserved)
    result = run_telemetry(
        read_workloads(None, 1), TelemetrySettings(rounds=8, lots=3, load=Load(4, 2)), lambda: told.append(1)
    )
    rows = result["per_round"]
    assert len(rows) == len(told) == len(BATCHES) * (4 + len(TraceLevel))
    assert all(row["engine_us_per_round"] > 0 for row in rows)
    working = {row["reader"]: row["elsewhere_us_per_row"] for row in rows}
    assert working["traces: off"] < working["traces: request"] < working["traces: round"]
    out = "".join(table.csv() for table in telemetry_report(result) if isinstance(table, Table))
    assert "traces: phase" in out
    assert "refusing" in out
    assert "1.25 (1.00-1.50)" in out


def test_one_bad_stretch_of_a_run_does_not_make_its_ratio() -> None:
    usual = [1.0] * 900
    ratio = p99_over([1.1] * 800 + [9.0] * 100, usual)
    assert ratio["median"] == pytest.approx(1.1)
    assert ratio["highest"] == pytest.approx(9.0)


def test_collectors_are_what_they_are_called() -> None:
    def answer(kind: str) -> int:
        with collector(kind) as url:
            request = urllib.request.Request(url, b"x", {"Content-Type": "application/x-protobuf"}, method="POST")
            try:
                with urllib.request.urlopen(request, timeout=5) as response:
                    return int(response.status)
            except urllib.error.HTTPError as error:
                error.close()
                return error.code

    assert (answer("well"), answer("refusing")) == (200, 400)
    with pytest.raises(urllib.error.URLError):
        answer("dead")
