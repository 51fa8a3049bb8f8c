"""vLLM's metric names, with its labels and buckets, for dashboards, autoscalers and load tools that were made for it.

Names and meanings: https://docs.vllm.ai/en/latest/design/metrics.html. Two differ: prompt and output tokens are counted
when a request ends, and the time between two tokens is the request's mean, counted once for each of its tokens.
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

from adaptspec.request import Request
from adaptspec.results import Completion, FinishReason

if TYPE_CHECKING:  # where another engine is the host, none of ours is there
    from adaptspec.engine.async_engine import EngineStats

_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_PER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_PHASE = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0),
    *(30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKENS = tuple(mantissa * 10.0**power for power in range(7) for mantissa in (1, 2, 5))


class VllmNames:
    """What ended requests and the load are under vLLM's names. `labels`: its two, and their values."""

    def __init__(self, registry: CollectorRegistry, labels: dict[str, str]) -> None:
        self._labels = labels
        count, time = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        names, values = tuple(labels), tuple(labels.values())
        self._prompt, self._generated = (
            count(f"vllm:{name}_tokens", f"Number of {name} tokens of requests that ended", names).labels(*values)
            for name in ("prompt", "generation")
        )
        success = count("vllm:request_success", "Requests that ended, by reason", (*names, "finished_reason"))
        self._success = {reason: success.labels(*values, reason.value) for reason in FinishReason}
        self._first_token, self._whole, self._queued, self._prefill, self._decode, self._inference = (
            time(f"vllm:{name}_seconds", help_text, names, buckets=bounds).labels(*values)
            for name, help_text, bounds in (
                ("time_to_first_token", "From arrival to the first token", _FIRST_TOKEN),
                ("e2e_request_latency", "From arrival to the end of a request", _PHASE),
                ("request_queue_time", "From arrival to admission", _PHASE),
                ("request_prefill_time", "From admission to the first token", _PHASE),
                ("request_decode_time", "From the first token to the end", _PHASE),
                ("request_inference_time", "From admission to the end", _PHASE),
            )
        )
        self._prompts, self._outputs, self._asked = (
            time(f"vllm:{name}", help_text, names, buckets=_TOKENS).labels(*values)
            for name, help_text in (
                ("request_prompt_tokens", "Prompt tokens of a request"),
                ("request_generation_tokens", "Output tokens of a request"),
                ("request_params_max_tokens", "The most output tokens that a request may have"),
            )
        )
        self._per_request = time(
            "vllm:request_time_per_output_token_seconds", "Mean of a request", names, buckets=_PER_TOKEN
        ).labels(*values)
        help_text = "Mean time between two output tokens of a request, once for each token"
        self._per_token = Weighted("vllm:inter_token_latency_seconds", help_text, labels, _PER_TOKEN)
        registry.register(self._per_token)

    def finished(self, request: Request, completion: Completion) -> None:
        """Count a request that has ended."""
        timings, tokens = completion.timings, len(completion.tokens)
        self._prompt.inc(completion.prompt_tokens)
        self._generated.inc(tokens)
        self._success[completion.finish].inc()
        self._whole.observe(timings.finished - timings.arrived)
        self._prompts.observe(completion.prompt_tokens)
        self._outputs.observe(tokens)
        self._asked.observe(request.sampling.max_tokens)
        if timings.admitted is not None:
            self._queued.observe(timings.admitted - timings.arrived)
            self._inference.observe(timings.finished - timings.admitted)
        if timings.first_token is None:
            return
        self._first_token.observe(timings.first_token - timings.arrived)
        self._decode.observe(timings.finished - timings.first_token)
        if timings.admitted is not None:
            self._prefill.observe(timings.first_token - timings.admitted)
        if tokens > 1:
            mean = (timings.finished - timings.first_token) / (tokens - 1)
            self._per_request.observe(mean)
            self._per_token.observe(mean, tokens - 1)

    def load(self, load: EngineStats) -> Iterator[Metric]:
        """Running and waiting requests, cache use, and prefix cache counters."""
        names, values = tuple(self._labels), tuple(self._labels.values())
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        for family, name, help_text, value in (
            (gauge, "num_requests_running", "Requests in the batch", load.running),
            (gauge, "num_requests_waiting", "Requests in the queue", load.waiting),
            (gauge, "kv_cache_usage_perc", "Share of the KV cache that is used; 1 is all of it", load.cache_used),
            (counter, "num_preemptions", "Preemptions of requests", load.preemptions),
            (counter, "prefix_cache_queries", "Prompt tokens looked for in the prefix cache", load.prefix_queried),
            (counter, "prefix_cache_hits", "Prompt tokens found in the prefix cache", load.prefix_hits),
        ):
            metric = family(f"vllm:{name}", help_text, labels=names)
            metric.add_metric(values, value)
            yield metric


class Weighted(Collector):
    """A histogram that takes a value any number of times at once."""

    def __init__(self, name: str, help_text: str, labels: dict[str, str], bounds: Sequence[float]) -> None:
        """`bounds`: the upper ends of the buckets, ascending; one without an end follows."""
        self._name, self._help, self._labels, self._bounds = name, help_text, labels, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._help, labels=tuple(self._labels))
        ends = [*map(str, self._bounds), "+Inf"]
        buckets = [(end, float(count)) for end, count in zip(ends, accumulate(self._counts), strict=True)]
        family.add_metric(tuple(self._labels.values()), buckets, self._sum)
        return [family]
