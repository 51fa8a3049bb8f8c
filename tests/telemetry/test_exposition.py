"""The whole exposition, held to the rules of `promtool check metrics`, and to promtool itself."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from adaptspec.control.rollout import Reloads
from adaptspec.engine.async_engine import EngineStats
from adaptspec.telemetry.metric_families import reload_families
from tests.control.helpers import record
from tests.telemetry.rounds import learned_costs
from tests.telemetry.test_metrics import DONE, counted


def exposition() -> str:
    """Everything under our own names, after a request and some rounds. The linter refuses the colons of vLLM's."""
    metrics = counted(*[record([3], [2])] * 80, DONE, costs=learned_costs(), vllm_names=False)
    metrics.watch_load(lambda: EngineStats(1, 0))
    metrics.watch(lambda: reload_families(Reloads(1, 0, 1.7e9)))
    metrics.watch_count("adaptspec_trace_dropped_spans", "Spans that no collector received", lambda: 3)
    metrics.responded("/v1/completions", 200)
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
