"""The figures are of the rounds that were replayed, none left out."""

from __future__ import annotations

from adaptspec.bench.decisions import DecisionSettings, run_decisions
from adaptspec.control.language.library import find_policy
from adaptspec.control.language.loader import load_policy_spec
from adaptspec.simulation.machine import load_machine
from tests.policies.tapes import made_tape


def test_every_policy_is_measured_at_every_batch_size() -> None:
    """A short tape is repeated until there are requests enough."""
    specs = [load_policy_spec(find_policy(name)) for name in ("goodput", "off")]
    ticks: list[None] = []
    tape, settings = made_tape(count=2, length=12), DecisionSettings((1, 4), requests=16)
    result = run_decisions(specs, tape, load_machine("cpu-2-cores"), settings, lambda: ticks.append(None))
    rows = result["policies"]
    assert [(row["policy"], row["batch"]) for row in rows] == [("goodput", 1), ("goodput", 4), ("off", 1), ("off", 4)]
    assert len(ticks) == len(rows)
    off = rows[2]
    assert off["rounds"] == 16 * 11  # one token a round, the first comes from the prompt
    assert all(0.0 < row["median_us"] <= row["p99_us"] for row in rows)
    assert all(row["share_of_round"] > 0.0 for row in rows)
