"""What a scrape shows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from adaptspec.control.cost_model import CostModel
from adaptspec.control.rollout import Reloads
from adaptspec.decision import Reason
from adaptspec.engine.async_engine import EngineStats
from adaptspec.request import Request
from adaptspec.results import Completion, FinishReason, SpeculationStats, Timings
from adaptspec.rounds import RoundRecord
from adaptspec.telemetry.metric_families import reload_families
from adaptspec.telemetry.metrics import Metrics
from adaptspec.telemetry.stream import EventStream
from tests.control.helpers import record, table
from tests.telemetry.rounds import learned_costs, round_of

REQUEST = Request("id", (1,))
Scrape = dict[tuple[str, str], float]


def scrape(metrics: Metrics) -> Scrape:
    """Samples by name and value of their last label, if they have one."""
    text = metrics.render()[0].decode()
    families = text_string_to_metric_families(text)
    return {
        (sample.name, next(reversed(sample.labels.values()), "")): sample.value
        for family in families
        for sample in family.samples
    }


def counted(
    *entries: RoundRecord | Completion,
    costs: CostModel | None = None,
    model_name: str = "",
    vllm_names: bool = True,
) -> Metrics:
    """Metrics of rounds and of requests that have ended."""
    stream = EventStream(interval=3600.0)
    metrics = Metrics(stream, model_name=model_name, vllm_names=vllm_names)
    stream.add(metrics)
    stream.start(costs, ("draft-model", "ngram"))
    for entry in entries:
        if isinstance(entry, RoundRecord):
            stream.emit(entry)
        else:
            stream.finished(REQUEST, entry)
    stream.flush()
    return metrics


def completion(tokens: int, finish: FinishReason, first: float | None = 0.5) -> Completion:
    times = Timings(arrived=0.0, admitted=0.1, first_token=first, finished=2.5)
    return Completion("id", "", (1,) * tokens, 7, finish, SpeculationStats(), times)


def test_rounds_are_served_under_native_names() -> None:
    first = round_of([(3, 3, 2, 3, Reason.POLICY), (0, 0, 0, 1, Reason.OFF)])
    seen = scrape(counted(first, round_of([(3, 2, 2, 1, Reason.EXPLORE)])))
    prefix = "adaptspec_spec_decode"
    assert seen[f"{prefix}_drafts_total", ""] == 2
    assert seen[f"{prefix}_draft_tokens_total", ""] == 5
    assert seen[f"{prefix}_accepted_tokens_total", ""] == 3
    assert seen[f"{prefix}_emitted_tokens_total", ""] == 5
    per_position = [seen[f"{prefix}_accepted_tokens_per_pos_total", str(position)] for position in range(3)]
    assert per_position == [2, 1, 0]
    assert (seen[f"{prefix}_depth_total", "0"], seen[f"{prefix}_depth_total", "3"]) == (1, 2)
    assert seen[f"{prefix}_decisions_total", "explore"] == 1
    assert seen[f"{prefix}_decisions_total", "probe"] == 0
    assert seen["adaptspec_rounds_total", ""] == 2
    assert seen["adaptspec_verify_seconds_total", ""] == 1.0


def test_positions_are_there_before_anything_was_drafted() -> None:
    """A scraper that first sees a counter above 0 misses its first increase."""
    metrics, name = Metrics(), "accepted_tokens_per_pos_total"
    for prefix in ("vllm:spec_decode_num", "adaptspec_spec_decode"):
        positions = [label for series, label in scrape(metrics) if series == f"{prefix}_{name}"]
        assert positions == [str(position) for position in range(7)]


def test_finished_requests_are_counted_and_timed() -> None:
    ends = [
        completion(5, FinishReason.STOP),
        completion(1, FinishReason.LENGTH),
        completion(0, FinishReason.ABORT, first=None),
    ]
    seen = scrape(counted(*ends))
    assert [seen["adaptspec_requests_total", reason.value] for reason in FinishReason] == [1, 1, 1, 0]
    assert seen["adaptspec_prompt_tokens_total", ""] == 21
    assert seen["adaptspec_generation_tokens_total", ""] == 6
    assert seen["adaptspec_time_to_first_token_seconds_count", ""] == 2
    assert seen["adaptspec_inter_token_seconds_count", ""] == 1
    assert seen["adaptspec_inter_token_seconds_sum", ""] == pytest.approx(0.5)
    assert seen["adaptspec_request_seconds_sum", ""] == pytest.approx(7.5)


def test_seconds_are_those_of_kinds_of_rounds() -> None:
    """A round that reads a prompt is not compared with predictions."""
    costs = learned_costs()
    plain, drafting = record([0], [0]), record([3], [3])
    seen = scrape(counted(plain, drafting, record([3], [0], prefill=9), costs=costs))
    measured, predicted = "adaptspec_round_seconds_total", "adaptspec_predicted_round_seconds_total"
    assert seen[measured, "plain"] == pytest.approx(plain.timing.total)
    assert seen[measured, "drafting"] == pytest.approx(drafting.timing.total)
    assert seen[measured, "prompt"] > 0
    assert seen[predicted, "plain"] == pytest.approx(costs.seconds(plain.work))
    assert seen[predicted, "drafting"] == pytest.approx(costs.seconds(drafting.work))
    alone = costs.plain_seconds(1, 100.0)
    assert seen["adaptspec_predicted_plain_seconds_total", "plain"] == pytest.approx(alone)
    assert seen["adaptspec_predicted_plain_seconds_total", "drafting"] == pytest.approx(4 * alone)
    assert (predicted, "prompt") not in seen


def test_the_speedup_has_bounds() -> None:
    seen = scrape(counted(*[record([3], [3])] * 20, costs=learned_costs()))
    low, value, high = (seen[f"adaptspec_speedup{which}_ratio", ""] for which in ("_low", "", "_high"))
    assert 1.0 < low < value < high
    assert seen["adaptspec_costs_unsure", ""] == 0.0


def test_what_is_unknown_has_no_sample() -> None:
    """A scraper meets no NaN and no invented figure; counters start at zero."""
    seen = scrape(counted(costs=table()))
    assert ("adaptspec_speedup_ratio", "") not in seen
    assert seen["adaptspec_costs_remeasured_total", ""] == seen["adaptspec_round_seconds_total", "drafting"] == 0.0
    assert not any(math.isnan(value) for value in seen.values())


def test_a_guard_and_drafters_are_counted() -> None:
    rows = [
        [(3, 3, 2, 3, Reason.POLICY)],
        *[[(0, 0, 0, 1, Reason.GUARD)]] * 3,
        [(3, 3, 3, 4, Reason.PROBE)],
        [(3, 3, 2, 3, Reason.POLICY)],
    ]
    seen = scrape(counted(*map(round_of, rows)))
    prefix = "adaptspec_spec_decode"
    assert [seen[f"{prefix}_{name}_total", ""] for name in ("guard_switches", "probes", "probes_won")] == [1, 1, 1]
    of_drafter = [
        seen[f"{prefix}_drafter_{name}_total", "draft-model"] for name in ("drafts", "nodes", "accepted_tokens")
    ]
    assert of_drafter == [3, 9, 7]
    assert seen[f"{prefix}_drafter_nodes_total", "ngram"] == 0


def test_inside_another_engine_names_of_vllm_are_left_to_it() -> None:
    assert not [name for name, _ in scrape(Metrics(vllm_names=False)) if name.startswith("vllm:")]


def test_labels_stay_bounded_however_deep_a_policy_drafts() -> None:
    seen = scrape(counted(round_of([(5000, 5000, 4000, 4001, Reason.POLICY)])))
    assert len(seen) < 400
    assert seen["adaptspec_spec_decode_depth_total", "64+"] == 1
    assert seen["adaptspec_spec_decode_accepted_tokens_total", ""] == 4000


def test_openmetrics_is_served_to_those_who_ask() -> None:
    body, content_type = Metrics().render("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_reloads_are_served_by_result_and_from_the_start() -> None:
    """An alert on failures needs the zero before the first one; and a time, to see that a rollout never arrived."""
    metrics, reloads = Metrics(), [Reloads()]
    metrics.watch(lambda: reload_families(reloads[0]))
    seen = scrape(metrics)
    assert seen["adaptspec_policy_reloads_total", "success"] == seen["adaptspec_policy_reloads_total", "failure"] == 0
    assert seen["adaptspec_policy_last_reload_success_timestamp_seconds", ""] == 0
    reloads[0] = Reloads(3, 1, 1.7e9)
    seen = scrape(metrics)
    assert seen["adaptspec_policy_reloads_total", "success"] == 3
    assert seen["adaptspec_policy_reloads_total", "failure"] == 1
    assert seen["adaptspec_policy_last_reload_success_timestamp_seconds", ""] == 1.7e9


def test_a_canary_can_be_compared_with_the_default() -> None:
    """Requests, tokens and their seconds by policy; a request that never got a token counts as a request only."""
    ends = [
        replace(completion(tokens, FinishReason.STOP, first), stats=SpeculationStats(policy=policy))
        for policy, tokens, first in (("main", 5, 0.5), ("main", 9, 1.5), ("canary", 3, 2.0), ("canary", 0, None))
    ]
    seen = scrape(counted(*ends))
    assert [seen["adaptspec_policy_requests_total", name] for name in ("main", "canary")] == [2, 2]
    assert [seen["adaptspec_policy_decode_tokens_total", name] for name in ("main", "canary")] == [12, 2]
    assert [seen["adaptspec_policy_decode_seconds_total", name] for name in ("main", "canary")] == [3.0, 0.5]


DONE = Completion("r", "", (1,) * 5, 3, FinishReason.STOP, SpeculationStats(), Timings(0.0, 0.1, 0.5, 2.5))


@pytest.mark.parametrize(
    ("name", "first", "mean", "below"),
    [
        ("adaptspec_time_to_first_token_seconds", 54.0, 1.0, 60.0),
        ("adaptspec_time_to_first_token_seconds", 590.0, 1.0, 600.0),
        ("adaptspec_request_seconds", 590.0, 150.0, 1200.0),
        ("adaptspec_inter_token_seconds", 1.0, 0.14, 0.15),
        ("adaptspec_inter_token_seconds", 1.0, 0.22, 0.25),
        ("adaptspec_inter_token_seconds", 1.0, 0.45, 0.5),
        ("vllm:time_to_first_token_seconds", 590.0, 1.0, 640.0),
        ("vllm:e2e_request_latency_seconds", 590.0, 150.0, 1920.0),
    ],
)
def test_slow_answers_fall_into_buckets_with_an_end(name: str, first: float, mean: float, below: float) -> None:
    """Quantiles of long prompts and slow machines are not cut at the last bound."""
    end = replace(DONE, timings=Timings(0.0, 0.1, first, first + 4 * mean))
    metrics = counted(end)
    bounds = {
        float(sample.labels["le"]): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == f"{name}_bucket"
    }
    assert min(bound for bound, count in bounds.items() if count) == below


VLLM = {"model_name": "m", "engine": "0"}


def test_vllm_boards_find_requests_and_their_times() -> None:
    """A failed request and one without a token count where vLLM counts them."""
    ends = (DONE, replace(DONE, finish=FinishReason.ABORT, tokens=(), timings=Timings(0.0, None, None, 9.0)))
    metrics = counted(*ends, model_name="m")
    metrics.watch_load(lambda: EngineStats(2, 3, 4, 0.25, prefix_queried=90, prefix_hits=70))
    value = metrics.registry.get_sample_value
    expected = {
        "num_requests_running": 2,
        "num_requests_waiting": 3,
        "num_preemptions_total": 4,
        "prefix_cache_queries_total": 90,
        "prefix_cache_hits_total": 70,
        "kv_cache_usage_perc": 0.25,
        "prompt_tokens_total": 6,
        "generation_tokens_total": 5,
        "time_to_first_token_seconds_sum": 0.5,
        "e2e_request_latency_seconds_sum": 11.5,
    }
    assert {name: value(f"vllm:{name}", VLLM) for name in expected} == pytest.approx(expected)
    reasons = [value("vllm:request_success_total", VLLM | {"finished_reason": one.value}) for one in FinishReason]
    assert reasons == [1, 0, 1, 0]


@given(st.lists(st.tuples(st.floats(0.001, 200), st.integers(2, 2000)), min_size=1, max_size=20))
def test_time_between_tokens_counts_each_token(ends: list[tuple[float, int]]) -> None:
    """The count is that of the gaps, the sum that of the seconds, and buckets never fall."""
    done = [replace(DONE, tokens=(1,) * tokens, timings=Timings(0.0, 0.0, 1.0, 1.0 + took)) for took, tokens in ends]
    metrics = counted(*done, model_name="m")
    (family,) = [one for one in metrics.registry.collect() if one.name == "vllm:inter_token_latency_seconds"]
    found = {sample.name.rpartition("_")[2]: sample.value for sample in family.samples}
    assert found["count"] == sum(tokens - 1 for _, tokens in ends)
    assert found["sum"] == pytest.approx(sum(end.timings.finished - 1.0 for end in done))
    buckets = [sample.value for sample in family.samples if sample.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == found["count"]
