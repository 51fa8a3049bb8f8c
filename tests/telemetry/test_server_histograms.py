"""Latencies in the buckets of the conventions, under labels that no client can make up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from adaptspec.telemetry.server_histograms import DURATION, FIRST_TOKEN, PER_TOKEN, ServerHistograms
from adaptspec.types import Completion, FinishReason, Request, SpeculationStats, Timings

DONE = Completion("r", "", (1,) * 5, 3, FinishReason.STOP, SpeculationStats(), Timings(0.0, 0.1, 0.5, 2.5))
CHAT = {"gen_ai_operation_name": "chat", "gen_ai_provider_name": "adaptspec", "gen_ai_request_model": "m"}


def noted(*ends: tuple[str, Completion]) -> CollectorRegistry:
    registry = CollectorRegistry()
    histograms = ServerHistograms(registry, "m")
    for operation, completion in ends:
        histograms.note(Request("r", (1,), operation=operation), completion)
    return registry


def test_answers_are_timed() -> None:
    registry = noted(("chat", DONE))
    assert registry.get_sample_value("gen_ai_server_time_to_first_token_seconds_sum", CHAT) == 0.5
    assert registry.get_sample_value("gen_ai_server_time_per_output_token_seconds_sum", CHAT) == 0.5
    whole = registry.get_sample_value("gen_ai_server_request_duration_seconds_sum", CHAT | {"error_type": ""})
    assert whole == 2.5


@pytest.mark.parametrize("finish", [FinishReason.ABORT, FinishReason.ERROR])
def test_failures_count_by_their_kind_and_are_no_answers(finish: FinishReason) -> None:
    registry = noted(("chat", replace(DONE, finish=finish)))
    found = registry.get_sample_value(
        "gen_ai_server_request_duration_seconds_count", CHAT | {"error_type": finish.value}
    )
    assert found == 1
    assert registry.get_sample_value("gen_ai_server_time_to_first_token_seconds_count", CHAT) is None


def test_operations_that_nobody_knows_are_one() -> None:
    """A label's values are few whatever is served."""
    registry = noted(*((f"made-up-{number}", DONE) for number in range(100)))
    values = {sample.labels.get("gen_ai_operation_name") for family in registry.collect() for sample in family.samples}
    assert values == {"_OTHER"}


def test_the_bounds_are_those_of_the_conventions() -> None:
    """Doubling from 10 ms; and 13 and 16 bounds that end at 2.5 s and 10 s."""
    assert tuple(round(0.01 * 2**i, 2) for i in range(14)) == DURATION
    assert (len(PER_TOKEN), PER_TOKEN[0], PER_TOKEN[-1]) == (13, 0.01, 2.5)
    assert (len(FIRST_TOKEN), FIRST_TOKEN[0], FIRST_TOKEN[-1]) == (16, 0.001, 10.0)
