"""vLLM's metric names, with its labels and buckets, for dashboards, autoscalers and load tools that were made for it.

Names and meanings: https://docs.vllm.ai/en/latest/design/metrics.html. Two differ: prompt and output tokens are counted
when a request ends, and the time between two tokens is the mean of its request, counted once for each of its tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from adaptspec.results import Completion, FinishReason
from adaptspec.telemetry.metric_families import counter, position_samples
from adaptspec.telemetry.sums import RoundSums

if TYPE_CHECKING:  # inside another engine, ours is not imported
    from adaptspec.engine.async_engine import EngineStats

_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_PER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_WHOLE = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0),
    *(30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class VllmNames:
    """Rounds, ended requests and the load under vLLM's names."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        # vLLM's labels: its name for the model, and the number of the engine, here always the first.
        self._labels, self._values = ("model_name", "engine"), (model_name, "0")
        count, time = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        self._prompt, self._generated = (
            count(f"vllm:{name}_tokens", f"Number of {name} tokens of requests that ended", self._labels).labels(
                *self._values
            )
            for name in ("prompt", "generation")
        )
        success = count("vllm:request_success", "Requests that ended, by reason", (*self._labels, "finished_reason"))
        self._success = {reason: success.labels(*self._values, reason.value) for reason in FinishReason}
        self._first_token, self._whole = (
            time(f"vllm:{name}_seconds", help_text, self._labels, buckets=bounds).labels(*self._values)
            for name, help_text, bounds in (
                ("time_to_first_token", "From arrival to the first token", _FIRST_TOKEN),
                ("e2e_request_latency", "From arrival to the end of a request", _WHOLE),
            )
        )
        help_text = "Mean time between two output tokens of a request, once for each token"
        self._per_token = WeightedHistogram(
            "vllm:inter_token_latency_seconds", help_text, self._labels, self._values, _PER_TOKEN
        )
        registry.register(self._per_token)

    def finished(self, completion: Completion) -> None:
        """Count a request that has ended."""
        timings, tokens = completion.timings, len(completion.tokens)
        self._prompt.inc(completion.prompt_tokens)
        self._generated.inc(tokens)
        self._success[completion.finish].inc()
        self._whole.observe(timings.finished - timings.arrived)
        if timings.first_token is None:
            return
        self._first_token.observe(timings.first_token - timings.arrived)
        if tokens > 1:
            self._per_token.observe((timings.finished - timings.first_token) / (tokens - 1), tokens - 1)

    def rounds(self, sums: RoundSums) -> Iterator[Metric]:
        """Counters of speculation. Draft tokens are positions, not nodes: accepted tokens are divided by them."""
        prefix = "vllm:spec_decode_num"
        for name, help_text, count in (
            ("drafts", "Number of drafts", sums.drafts),
            ("draft_tokens", "Number of draft tokens", sums.drafted),
            ("accepted_tokens", "Number of accepted tokens", sums.accepted),
        ):
            yield counter(f"{prefix}_{name}", help_text, self._labels, [(self._values, count)])
        positions = position_samples(sums.accepted_per_position.tolist())
        samples = [((*self._values, position), count) for position, count in positions]
        help_text = "Drafted tokens accepted, by position in the draft"
        yield counter(f"{prefix}_accepted_tokens_per_pos", help_text, [*self._labels, "position"], samples)

    def load(self, load: EngineStats) -> Iterator[Metric]:
        """Running and waiting requests, cache use, and prefix cache counters."""
        for family, name, help_text, value in (
            (GaugeMetricFamily, "num_requests_running", "Requests in the batch", load.running),
            (GaugeMetricFamily, "num_requests_waiting", "Requests in the queue", load.waiting),
            (GaugeMetricFamily, "kv_cache_usage_perc", "Share of the KV cache that is used, 0 to 1", load.cache_used),
            (CounterMetricFamily, "num_preemptions", "Preemptions of requests", load.preemptions),
            (CounterMetricFamily, "prefix_cache_queries", "Prompt tokens looked for in the cache", load.prefix_queried),
            (CounterMetricFamily, "prefix_cache_hits", "Prompt tokens found in the prefix cache", load.prefix_hits),
        ):
            metric = family(f"vllm:{name}", help_text, labels=self._labels)
            metric.add_metric(self._values, value)
            yield metric


class WeightedHistogram(Collector):
    """A histogram that takes a value any number of times at once."""

    def __init__(
        self, name: str, help_text: str, labels: Sequence[str], values: Sequence[str], bounds: Sequence[float]
    ) -> None:
        """`bounds`: the upper ends of the buckets, ascending; one without an end follows."""
        self._name, self._help, self._labels, self._values, self._bounds = name, help_text, labels, values, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        ends = [*map(str, self._bounds), "+Inf"]
        buckets = [(end, float(count)) for end, count in zip(ends, accumulate(self._counts), strict=True)]
        family.add_metric(self._values, buckets, self._sum)
        return [family]
