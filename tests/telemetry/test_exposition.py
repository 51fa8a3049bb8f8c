"""The whole exposition, held to the rules of `promtool check metrics`, and to promtool itself."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from adaptspec.control.rollout import Reloads
from adaptspec.engine.async_engine import EngineStats
from adaptspec.request import Request
from adaptspec.telemetry.earnings import Earnings
from adaptspec.telemetry.metric_families import earning_families, load_families, reload_families
from adaptspec.telemetry.metrics import Metrics
from tests.control.helpers import record, table
from tests.telemetry.feeding import made
from tests.telemetry.test_metrics import DONE


def exposition() -> str:
    """Everything that a server can show, after a request and some rounds."""
    store, metrics = made(lambda store: Metrics(store, model_name="tiny"), rows=1)
    earnings = Earnings(store)
    earnings.begin(table(), ("draft-model", "ngram"), 1, 1)
    metrics.watch(lambda: load_families(EngineStats(1, 0)))
    metrics.watch(lambda: earning_families(earnings.snapshot()))
    metrics.watch(lambda: reload_families(Reloads(1, 0, 1.7e9)))
    metrics.watch_count("adaptspec_trace_dropped_spans", "Spans that nobody received", lambda: 3)
    metrics.responded("/v1/completions", 200)
    store.started(Request("0", (1,)))
    for _ in range(80):
        store.emit(record([3], [2]))
    store.finished(Request("0", (1,), operation="chat"), DONE)
    return metrics.render()[0].decode()


def test_promtool_finds_nothing() -> None:
    """Prometheus' own linter; it reads what it is given even where there is nothing to complain of."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.fail("no promtool: install it (apt-get install prometheus), or have the one you have in PATH")
    for text, clean in ((exposition(), True), ("a:b 1\n", False)):
        done = subprocess.run(
            [promtool, "check", "metrics"], check=False, input=text, text=True, capture_output=True, timeout=60
        )
        assert (done.returncode == 0) is clean, done.stderr
